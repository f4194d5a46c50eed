"""Recollect's Python API.

    import recollect

    recollect.train("data/", out="run/")
    recollect.build("run/", store="store/", activate=True)
    recollect.open("store/").predict("garden chair", top_k=5)

A function takes the flags of its verb as keywords (`max_length=32`, `lambda_=0.5`) and reads the same environment
variables. For a mistake that a user can correct, a function raises an error in `recollect.ERRORS`. No function writes
to standard output. `import recollect` is fast: it imports the packages when a function runs.
"""

from __future__ import annotations

import contextlib
import importlib
import keyword
import os
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recollect.cli.command_line import main
from recollect.cli.verbs import VERBS, UsageError, describe, require_extra, settings_class
from recollect.core.errors import RecollectError

if TYPE_CHECKING:
    from recollect.model import Model

__all__ = [
    "ERRORS",
    "UsageError",
    "build",
    "evaluate",
    "export",
    "main",
    "open",
    "predict_file",
    "push",
    "rank",
    "train",
    "tune",
]

# No library sends reports about its use. It reads its variable when it is imported; child processes inherit all three.
os.environ.update(ORT_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_TELEMETRY="1", RAY_USAGE_STATS_ENABLED="0")
# An idle thread of OpenMP (torch, faiss) sleeps after this many checks for new work. With the 300,000 checks of GNU's
# library, idle threads take the cores that other threads and programs need: on busy cores, a training or a build takes
# several times as long. OpenMP reads the variable when it loads.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# The base class of all errors that a user can correct, for `except recollect.ERRORS as error`.
ERRORS = (RecollectError,)


def open(  # noqa: A001 - the name that a user expects: recollect.open(...)
    store: str | Path,
    *,
    version: str = "current",
    verify_key: str | Path | None = None,
    bundle_cache: str | Path | None = None,
    threads: int = 1,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    live: Literal["off", "read", "write"] | None = None,
) -> Model:
    """Open a version of a bundle store, to answer queries in this process.

    Args:
        store: Bundle store: a folder, or a URL such as `s3://bucket/store`.
        version: Version to open; "current" means the store's current version.
        verify_key: PEM file with Ed25519 public keys, one of which must have signed the bundle; None accepts unsigned
            bundles.
        bundle_cache: Folder for bundles that are downloaded from a store at a URL, and with `verify_key` for private
            copies of bundles; None means ~/.cache/recollect.
        threads: Threads for each call of `predict`; 0 means one for each core.
        live: `read`: the model has the live entries of the store. `write`: its own changes are also written to the
            store. `off`: it has the bundle alone. None means `read`, or `off` with `verify_key`, because no signature
            covers live entries.
    """
    given = {"store": store, "verify_key": verify_key, "bundle_cache": bundle_cache}
    with require_extra("serve"):
        from recollect.core.settings import ServiceSettings
        from recollect.model import open_model

        read = _from_keywords(
            "open", {name: value for name, value in given.items() if value is not None}, ServiceSettings
        )
        return open_model(read.store, version, read.verify_key, read.bundle_cache, threads, device, live)


def predict_file(input: str | Path, output: str | Path, *, store: str | Path, **flags: Any) -> int:  # noqa: A002
    """Answer all queries of a file with several processes, write them to a file, and return the number of rows."""
    with _settings("predict", input=input, output=output, store=store, **flags) as settings:
        from recollect.bulk.job import predict_file as predict_rows

        return predict_rows(settings)


def train(dataset: str | Path | Any, *, out: str | Path, **flags: Any) -> Path:
    """Train an encoder on a dataset, write a run folder (`checkpoint/` and `memory/`), and return it.

    Args:
        dataset: A dataset folder, the file of a table, or a data frame of pandas, polars or Arrow.
    """
    with _dataset_settings("train", dataset, out=out, **flags) as settings:
        from recollect.index_builder.training import train as train_run

        train_run(settings)
    return Path(out)


def tune(run: str | Path, **flags: Any) -> dict[str, float]:
    """Choose lambda, tau, b and label_key_alpha on held-out instances, and make them the defaults of the run.

    Returns:
        The new defaults, `lambda`, `temperature`, `top_b` and `label_key_alpha`, and their `score` in percent.
    """
    with _settings("tune", run=run, **flags) as settings:
        from recollect.index_builder.training import tune as tune_run

        tuning, _ = tune_run(settings)
        return tuning.best.as_json()


def rank(run: str | Path, **flags: Any) -> dict[str, Any]:
    """Fit a ranker of labels on left-out instances, and keep it in the run if it ranks better than the votes.

    Returns:
        `kept`, and the `gains` of the ranker over the votes. `recollect rank --json` prints the same dict as JSON.
    """
    with _settings("rank", run=run, **flags) as settings:
        from recollect.index_builder.reranker.rank import rank_run

        return rank_run(settings).as_json()


def build(run: str | Path, *, store: str | Path, **flags: Any) -> str:
    """Build a bundle from a run folder, check it, publish it in a store, and return the new version."""
    with _settings("build", run=run, store=store, **flags) as settings:
        from recollect.index_builder.build import build as build_bundle

        return build_bundle(settings)


def push(run: str | Path, *, to: str, **flags: Any) -> str:
    """Upload a run to the Hugging Face hub, with a model card. The token comes from HF_TOKEN.

    Returns:
        The address of the uploaded commit, `hf://user/name@commit`, which `build` reads.
    """
    with _settings("push", run=run, to=to, **flags) as settings:
        from recollect.core import extras

        return str(extras.load("verb", "push").push(settings))


def evaluate(dataset: str | Path | Any, *, store: str | Path, **flags: Any) -> dict[str, Any]:
    """Measure a bundle on the test split of a dataset: a folder, the file of a table, or a data frame.

    Returns:
        `version`, `queries` (their number) and `rows`: for each combination of `lambda`, `temperature` and `top_b`, a
        dict with these three and every metric in percent (None if undefined). `recollect evaluate --json` prints the
        same dict as JSON.
    """
    with _dataset_settings("evaluate", dataset, store=store, **flags) as settings:
        from recollect.index_builder.evaluation.evaluate import evaluate as evaluate_bundle

        return vars(evaluate_bundle(settings))


def export(store: str | Path, *, out: str | Path, **flags: Any) -> Path:
    """Write the memory of a version as a dataset folder, which `train` reads, and return the folder."""
    with _settings("export", store=store, out=out, **flags) as settings:
        from recollect.cli.memory import export as export_version

        export_version(settings)
    return Path(out)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "sklearn":  # the module needs scikit-learn
            return importlib.import_module("recollect.sklearn")
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")


@contextlib.contextmanager
def _settings(verb: str, /, **keywords: Any) -> Iterator[Any]:
    """Yield the settings of a call. An error names the extra to install if a package of the verb is missing."""
    with require_extra(VERBS[verb].extra):
        yield _from_keywords(verb, keywords)


@contextlib.contextmanager
def _dataset_settings(verb: str, dataset: Any, /, **keywords: Any) -> Iterator[Any]:
    """Yield the settings of a call that reads a dataset, which may be a data frame."""
    is_path = isinstance(dataset, str | Path)
    with _settings(verb, dataset=dataset if is_path else "DataFrame", **keywords) as settings:
        yield settings if is_path else settings.with_frame(dataset)


def _from_keywords(function: str, keywords: Mapping[str, Any], declared: Any = None) -> Any:
    """Read settings from keywords. A setting without a keyword comes from its environment variable or its default.

    Without a class in `declared`, the settings are those of the verb.
    """
    from pydantic import ValidationError

    declared = declared or settings_class(function)
    fields = {name: field for name, field in declared.model_fields.items() if name != "json_"}
    for name in keywords:
        if name not in fields:
            raise UsageError(f"recollect.{function}: unknown keyword {name}; known: {', '.join(sorted(fields))}")
    values = {}
    for name, given in keywords.items():
        is_one_of_list = typing.get_origin(fields[name].annotation) is list and isinstance(given, int | float)
        value = [given] if is_one_of_list else str(given) if isinstance(given, Path) else given
        values[str(fields[name].validation_alias or name)] = value
    try:
        return declared(**values)
    except ValidationError as error:
        raise UsageError(f"recollect.{function}: {describe(error, _as_keyword)}") from None


def _as_keyword(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
