"""A trial: a real training of a few steps on a sample of the dataset, in a process of its own.

The process gets the share of one rank: a batch with the queries of one rank, and for a pool of all labels about the
labels of one rank. Its peak memory and its speed are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from recollect.trainer.data.split import Entries, Split
from recollect.trainer.errors import TrainingError
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.methods import METHODS
from recollect.trainer.plan.settings import PlanSettings
from recollect.trainer.train_settings import TrainSettings

# Steps of a trial.
STEPS = 6
_FEWEST_INSTANCES, _MOST_LABELS = 256, 4_096
# Flags that the trial sets itself, or that suit only the whole dataset.
_NOT_PASSED_ON = {
    *("dataset", "out", "format", "text_fields", "empty_texts", "label_language", "unknown_labels"),
    *("epochs", "max_steps", "max_seconds", "batch_size"),
    *("validate_every", "mine_from", "mine_every", "clusters", "cluster_from", "cluster_every", "cluster_double_at"),
    *("bank", "vectors", "tune", "rank", "save_minutes", "resume", "overwrite", "gpus", "json_", "preset", "scale"),
    *("query_encoder", "best", "minutes"),
}


@dataclass(frozen=True)
class Trial:
    """The measurements of a trial.

    Attributes:
        recipe: The recipe of the trial, as JSON.
        instances: Instances of the sample.
        labels: Labels of the sample.
        pairs: Pairs of the sample.
        text_bytes: Size of the sample's texts and uids.
        key_dim: Size of a key.
        seconds: Seconds of each activity.
        peak_bytes: Peak memory of the process.
        peak_gpu_bytes: Peak of the allocated GPU memory; 0 on a CPU.
        trained: Number of trained parameters.
    """

    recipe: dict[str, Any]
    instances: int
    labels: int
    pairs: int
    text_bytes: int
    key_dim: int
    seconds: dict[str, float]
    peak_bytes: int
    peak_gpu_bytes: int
    trained: int


def run_trial(settings: PlanSettings, labels: Entries, instances: Split, batch: int, folder: Path) -> Trial:
    """Train on a sample, and return the measurements.

    Args:
        settings: The flags of the training.
        labels: All labels.
        instances: All instances.
        batch: Queries of one rank in a step.
        folder: An empty folder.

    Raises:
        TrainingError: If the trial fails. The message contains the last line of its output.
    """
    rows, kept = _sample(settings, labels, instances, batch)
    sample, texts = instances.where(rows, kept), labels.where(kept)
    _write(folder / "data", texts, sample)
    given = settings.model_dump(mode="json", by_alias=True, include=_passed_on(settings))
    given |= {"dataset": str(folder / "data"), "out": str(folder / "run"), "batch_size": batch, "max_steps": STEPS}
    given |= {"empty_texts": "keep", "format": "native", "tune": "no", "save_minutes": 0, "validate_every": STEPS}
    if METHODS[settings.method].mined(settings.hard_negatives):
        given["mine_every"] = STEPS
    outside = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    process = subprocess.run(
        [sys.executable, "-m", "recollect.trainer.plan.trial"],
        input=json.dumps(given),
        env=outside,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise TrainingError(f"{settings.dataset}: the trial on a sample failed: {reason}")
    saved = json.loads((folder / "run" / "training.json").read_text())
    return Trial(
        saved["recipe"],
        len(sample),
        len(texts),
        len(sample.labels.indices),
        entries_bytes(texts) + entries_bytes(sample.entries),
        open_memory(folder / "run" / "memory").plan.dim,
        saved["activities"],
        saved["measured"]["peak_memory_bytes"],
        saved["measured"].get("peak_gpu_memory_bytes", 0),
        saved["measured"]["trainable_parameters"],
    )


def entries_bytes(entries: Entries) -> int:
    return int(entries.uids.nbytes + entries.texts.nbytes)


def _passed_on(settings: PlanSettings) -> set[str]:
    """The names of the fields that the trial gets: given by the user or by a preset."""
    given = settings.model_fields_set
    if settings.preset is not None:
        given = {
            name for name, field in type(settings).model_fields.items() if getattr(settings, name) != field.default
        }
    options = METHODS[settings.method].options.model_fields
    shared = {name for name in given if name in options or not _is_option(name)}
    return shared - _NOT_PASSED_ON | {"method", "device"}


def _is_option(name: str) -> bool:
    return any(name in method.options.model_fields for method in METHODS.values())


def _sample(
    settings: PlanSettings, labels: Entries, instances: Split, batch: int
) -> tuple[Bool[np.ndarray, " instance"], Bool[np.ndarray, " label"]]:
    """Mark the instances and the labels of the sample: labels of these instances, and some others."""
    random = np.random.default_rng(settings.seed)
    wanted = int(max(_FEWEST_INSTANCES, 2 * batch) / (1 - settings.validation_fraction)) + 1
    labelled = np.flatnonzero(np.diff(instances.labels.indptr))
    rows, kept = np.zeros(len(instances), dtype=bool), np.zeros(len(labels), dtype=bool)
    rows[random.permutation(labelled)[:wanted]] = True
    kept[instances.labels.where(rows).indices] = True
    every_label = METHODS[settings.method].mined(settings.hard_negatives) is None
    count = min(_MOST_LABELS, len(labels) // settings.gpus) if every_label else _FEWEST_INSTANCES
    others = random.permutation(np.flatnonzero(~kept))
    kept[others[: max(0, count - int(kept.sum()))]] = True
    if kept.sum() < 2:
        kept[others[:2]] = True
    return rows, kept


def _write(folder: Path, labels: Entries, instances: Split) -> None:
    folder.mkdir(parents=True)
    with (folder / "labels.jsonl").open("w", encoding="utf-8") as file:
        for uid, text in zip(labels.uids.to_pylist(), labels.texts.to_pylist(), strict=True):
            file.write(json.dumps({"uid": uid, "text": text}) + "\n")
    pointers, indices = instances.labels.indptr, instances.labels.indices
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for row, text in enumerate(instances.entries.texts.to_pylist()):
            own = indices[pointers[row] : pointers[row + 1]].tolist()
            file.write(json.dumps({"uid": str(row), "text": text, "labels": own}) + "\n")


def _main() -> None:
    """Train with the settings on standard input. This is the process of a trial."""
    from recollect.trainer.errors import TrainerError
    from recollect.trainer.run import write_run

    try:
        write_run(TrainSettings(**json.load(sys.stdin)))
    except TrainerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
