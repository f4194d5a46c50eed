"""Runs on the Hugging Face hub: `recollect push`, and `recollect build hf://user/name[@revision]`.

A run on the hub consists of data files only. Files of code and pickle files are neither uploaded nor downloaded.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from recollect.core.settings import is_encoder_url
from recollect.core.system.console import print_status
from recollect.core.system.files import find_files, read_json
from recollect.index_builder.errors import BuildError
from recollect.index_builder.settings import PushSettings
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.memory.memory import DATASET, Memory, open_memory
from recollect.trainer.run_folder import RunFolder

_SUFFIXES = (".json", ".jsonl", ".npy", ".npz", ".safetensors", ".txt", ".model")
_FOLDERS = ("checkpoint", "memory", "query_encoder")
# The files of a run on the hub. In these patterns, * also stands for folders.
_DATA = ["training.json", "metrics.jsonl", *(f"{folder}/*{suffix}" for folder in _FOLDERS for suffix in _SUFFIXES)]
# JSON files that Recollect writes. They contain the folder of an encoder that was not a name of the hub, the address of
# a server of vectors, or the path of a file of labels.
_OWN = ("training.json", "memory.json", "recollect.json", "distillation.json", DATASET)
# In place of the address of a server of vectors.
_SERVER = "http://server/v1"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_METRICS = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@100")


def download(run: Path) -> Path:
    """The folder of the run `hf://user/name[@revision]`. Files in the local cache are not downloaded again.

    Raises:
        BuildError: If the address is wrong, or the hub does not answer.
    """
    repository, at, revision = "/".join(run.parts[1:]).partition("@")
    address = f"hf://{repository}{at}{revision}"
    if not _REPOSITORY.fullmatch(repository) or bool(at) != bool(revision):
        raise BuildError(f"{address}: expected hf://user/name or hf://user/name@revision")
    from huggingface_hub import snapshot_download

    with _one_line_errors(address):
        folder = Path(snapshot_download(repository, revision=revision or None, allow_patterns=_DATA))
    print_status(f"{address}: commit {folder.name}")  # the cache has a folder for each commit
    return folder


def push(settings: PushSettings) -> str:
    """Upload a run. The token comes from HF_TOKEN, or from the login of the hub's client.

    Returns:
        The address of the uploaded commit, or with `--dry-run` the model card.

    Raises:
        BuildError: If the training is unfinished, the evaluation cannot be read, the hub refuses the upload, or the
            repository is public without `--public`.
        MemoryFolderError, EncoderError, TrainingError: If the run cannot be read.
    """
    run, where = settings.run, f"--to {settings.to}"
    if not _REPOSITORY.fullmatch(settings.to):
        raise BuildError(f"{where}: expected user/name with letters, digits and . _ -")
    memory = open_memory(run / "memory")
    load_checkpoint(run / "checkpoint", "cpu")
    training = RunFolder(run).training()
    if training is not None and not training["done"]:
        raise BuildError(f"{run}: expected a finished training; finish it with `recollect train --resume`")
    card = _model_card(settings, memory, training or {})
    if settings.dry_run:
        return card
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [CommitOperationAdd("README.md", card.encode())]
    for path in find_files(run, "**/*"):
        name = path.relative_to(run).as_posix()
        if path.is_file() and any(fnmatchcase(name, pattern) for pattern in _DATA):
            operations.append(CommitOperationAdd(name, _without_places(path) if path.name in _OWN else path))
    print_status(f"push: {len(operations)} files, with the texts of the memory")
    with _one_line_errors(where):
        hub = HfApi()
        hub.create_repo(settings.to, private=not settings.public, exist_ok=True)
        if not settings.public and not hub.model_info(settings.to).private:
            raise BuildError(
                f"{where}: expected a private repository, because a run contains the texts of its memory, found a "
                "public one; make it private, or allow this with --public"
            )
        commit = hub.create_commit(settings.to, operations, commit_message="Upload a run of Recollect")
    return f"hf://{settings.to}@{commit.oid}"


def _without_places(path: Path) -> bytes:
    """The content of a JSON file, with the last part of each absolute path, and without addresses of servers."""

    def public(name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if is_encoder_url(value):
            return _SERVER + "".join(value.partition("#")[1:])
        is_path = value.startswith("/") and (path.name != DATASET or name == "labels")  # "/" may be a separator
        return Path(value).name if is_path else value

    def hook(values: dict[str, Any]) -> dict[str, Any]:
        return {name: public(name, value) for name, value in values.items()}

    return json.dumps(json.loads(path.read_text(encoding="utf-8"), object_hook=hook), indent=2).encode()


def _model_card(settings: PushSettings, memory: Memory, training: dict[str, Any]) -> str:
    """The model card: the facts that the hub reads, and a table of the model, its figures and its data.

    Raises:
        BuildError: If the evaluation cannot be read.
    """
    encoder, recipe = memory.plan.encoder, training.get("recipe", {})
    given, is_served = str(encoder["name"]), is_encoder_url(str(encoder["name"]))
    name = Path(given)
    lengths = f"{encoder['max_length']} of a text, {encoder['label_max_length']} of a label"
    labels_of_text = np.diff(memory.value_indptr)
    texts_of_label = memory.label_counts
    facts = {
        # Without the folders of the author's machine, and without the address of a server.
        "encoder": f"`{given.partition('#')[2]}`, of a server"
        if is_served
        else f"`{name.name if name.is_absolute() else name}`",
        "method": f"`{recipe['method']}`, {recipe['train']}" if "method" in recipe else "none (pretrained encoder)",
        "tokens": "as many as the server reads" if is_served else lengths,
        "dimensions": f"{memory.plan.dim}",
        **{each: f"{recipe[each]}" for each in ("steps", "batch_size", "learning_rate") if each in recipe},
        "defaults": ", ".join(f"{each} {value:g}" for each, value in memory.defaults.items()),
        **_figures(settings.evaluation, training.get("progress")),
        "texts": f"{memory.plan.instances:,}",
        "labels": f"{memory.plan.labels:,}",
        "labels of a text": f"{labels_of_text.mean():.1f} on average, {labels_of_text.max()} at most",
        "labels without a text": f"{(texts_of_label == 0).sum():,}",
        "SHA-256 of the dataset": f"`{memory.plan.dataset_sha256}`",
    }
    table = "\n".join(f"| {each} | {value} |" for each, value in facts.items())
    licence = f"license: {settings.license}\n" if settings.license else ""
    return f"""---
{licence}library_name: recollect
pipeline_tag: text-classification
tags: [recollect, extreme-classification, multi-label]
---

# {settings.to.partition("/")[2]}

A run of Recollect: an encoder, and a memory of texts with labels. It finds the few labels that fit a text.

```sh
recollect build hf://{settings.to} --store store/ --activate
recollect predict "your text" --store store/
```

| | |
|---|---|
{table}

The folder `memory/` contains the texts and the labels of all training instances. Answers can quote them. Only the owner
of the data can add its origin, languages, known gaps and intended use.
"""


def _figures(evaluation: Path | None, progress: dict[str, Any] | None) -> dict[str, str]:
    figures = {}
    if progress is not None:
        if progress["best"] is not None:
            figures["nDCG@5 on held-out training texts"] = f"{progress['best']:.1f}"
        figures["seconds of training"] = f"{progress['seconds']:,.0f}"
    if evaluation is None:
        return figures
    try:
        measured = read_json(evaluation)
        for row in measured["rows"]:
            values = ", ".join(f"{name} {row[name]:.1f}" for name in _METRICS if row.get(name) is not None)
            setting = f"order {row['order']}, lambda {row['lambda']:g}"
            figures[f"{measured['queries']:,} test texts, {setting}"] = values
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{evaluation}: expected the output of `recollect evaluate --json`, found {error!r}") from None
    return figures


@contextlib.contextmanager
def _one_line_errors(where: str) -> Iterator[None]:
    """Turn errors of the hub and of the network into a `BuildError` of one line. No message contains the token."""
    from huggingface_hub import constants, errors, get_token

    token = get_token() or ""
    if not (token.isascii() and token.isprintable()):  # an error of the HTTP library would contain it
        raise BuildError(f"{where}: HF_TOKEN: expected printable ASCII characters, found others; copy the token again")
    network = (errors.HTTPError, errors.FileMetadataError)  # type: ignore[attr-defined]
    try:
        yield
    except errors.RevisionNotFoundError:
        raise BuildError(f"{where}: the repository has no such revision") from None
    except errors.HfHubHTTPError as error:
        raise BuildError(
            f"{where}: the hub answered {error.response.status_code}: there is no such repository, or HF_TOKEN may not "
            "use it; check the name and the token, or try again later"
        ) from None
    except (*network, errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise BuildError(
            f"{where}: expected an answer of {constants.ENDPOINT}, found none; check the network and HF_ENDPOINT, or "
            "unset HF_HUB_OFFLINE"
        ) from None
