"""The model card of a run: README.md with the facts of the hub, figures, and a data sheet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from recollect.index_builder.errors import BuildError
from recollect.trainer.memory.memory import Memory

_METRICS = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@100")
_RECIPE = ("steps", "batch_size", "learning_rate")


def model_card(
    repository: str, run: Path, memory: Memory, licence: str | None = None, evaluation: Path | None = None
) -> str:
    """Write the model card.

    Args:
        repository: User and name.
        run: The run folder.
        memory: The memory of the run.
        licence: Identifier of the licence on the hub; None states no licence.
        evaluation: File with the output of `recollect evaluate --json`; None gives no figures of a test split.

    Raises:
        BuildError: If the evaluation cannot be read.
    """
    facts = ["---", "library_name: recollect", "pipeline_tag: text-classification"]
    facts += ["tags:", "- recollect", "- extreme-classification", "- multi-label"]
    facts += [f"license: {licence}"] if licence else []
    return "\n".join(
        [
            *facts,
            "---",
            "",
            f"# {repository.partition('/')[2]}",
            "",
            f"A run of Recollect: an encoder, and a memory of {memory.plan.instances:,} texts with "
            f"{memory.plan.labels:,} labels. It finds the few labels that fit a text.",
            "",
            "```sh",
            f"recollect build hf://{repository} --store store/ --activate",
            'recollect predict "your text" --store store/',
            "```",
            "",
            *_table("Model", _model_facts(run, memory)),
            *_table("Figures", _figures(run, evaluation)),
            *_table("Data sheet", _data_sheet(memory)),
            "The folder `memory/` contains the texts and the labels of all training instances. Answers can quote them.",
            "Only the owner of the data can add its origin, languages, known gaps and intended use.",
            "",
        ]
    )


def _table(title: str, rows: dict[str, str]) -> list[str]:
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *lines, ""] if rows else []


def _model_facts(run: Path, memory: Memory) -> dict[str, str]:
    encoder, recipe = memory.plan.encoder, _read(run / "training.json").get("recipe", {})
    name = Path(str(encoder["name"]))
    facts = {
        "encoder": f"`{name.name if name.is_absolute() else name}`",  # without the folders of the author's machine
        "pooling": f"{encoder['pooling']}",
        "tokens": f"{encoder['max_length']} of a text, {encoder['label_max_length']} of a label",
        "dimensions": f"{memory.plan.dim}",
        "method": f"`{recipe['method']}`, {recipe['train']}" if "method" in recipe else "none (pretrained encoder)",
        **{each.replace("_", " "): f"{recipe[each]}" for each in _RECIPE if each in recipe},
        "defaults": ", ".join(f"{each} {value:g}" for each, value in memory.defaults.items()),
    }
    return facts | {"query encoder": "static"} if (run / "query_encoder").is_dir() else facts


def _figures(run: Path, evaluation: Path | None) -> dict[str, str]:
    training = _read(run / "training.json")
    figures = {}
    if progress := training.get("progress"):
        if progress["best"] is not None:
            figures["nDCG@5 on held-out training texts"] = f"{progress['best']:.1f}"
        figures["seconds of training"] = f"{progress['seconds']:,.0f}"
    if evaluation is None:
        return figures
    try:
        measured = json.loads(evaluation.read_text(encoding="utf-8"))
        for row in measured["rows"]:
            setting = f"order {row['order']}, lambda {row['lambda']:g}"
            values = ", ".join(f"{name} {row[name]:.1f}" for name in _METRICS if row.get(name) is not None)
            figures[f"{measured['queries']:,} test texts, {setting}"] = values
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{evaluation}: expected the output of `recollect evaluate --json`, found {error!r}") from None
    return figures


def _data_sheet(memory: Memory) -> dict[str, str]:
    labels_of_text = np.diff(memory.value_indptr)
    texts_of_label = np.bincount(memory.value_indices, minlength=memory.plan.labels)
    seen = texts_of_label[texts_of_label > 0]
    return {
        "texts": f"{memory.plan.instances:,}",
        "labels": f"{memory.plan.labels:,}",
        "labels of a text": f"{labels_of_text.mean():.1f} on average, {labels_of_text.max()} at most",
        "texts without a label": f"{(labels_of_text == 0).sum():,}",
        "labels without a text": f"{(texts_of_label == 0).sum():,}",
        "texts of a label": f"median {np.median(seen) if len(seen) else 0:g} of the labels with a text",
        "SHA-256 of the dataset": f"`{memory.plan.dataset_sha256}`",
    }


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
