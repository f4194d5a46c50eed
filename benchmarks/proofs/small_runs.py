"""A sample of a dataset, and runs on it: untrained encoders, and static encoders trained with any method."""

from __future__ import annotations

import functools
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

import recollect
from recollect.index_builder.compare.quality import Quality, measure
from recollect.index_builder.compare.queries import Queries
from recollect.trainer.data.dataset import open_dataset
from recollect.trainer.data.sample import write_sample
from recollect.trainer.data.split import Entries, LabelSets

# Number of training texts of a sample, and of test texts that a seed draws.
INSTANCES, TEST_TEXTS = 2_000, 500
_MAX_TOKENS = 48
_STEPS, _BATCH_SIZE = 60, 128


@dataclass(frozen=True)
class Sample:
    """A sample of a dataset: some training texts, their labels, and the test texts with these labels.

    Attributes:
        data: The dataset folder of the sample.
        runs: Folder of its runs.
    """

    data: Path
    runs: Path

    def untrained(self, encoder: str) -> Path:
        """Encode all texts with a frozen encoder, once. Return the run folder."""
        return recollect.train(self.data, out=self.runs / encoder, encoder=encoder, epochs=0, max_length=_MAX_TOKENS)

    def train(self, name: str, seed: int, **flags: Any) -> Path:
        """Train a static encoder. Return the run folder. An earlier run with this name is replaced."""
        budget = {"max_steps": _STEPS, "batch_size": _BATCH_SIZE, "validation_fraction": 0, "max_length": _MAX_TOKENS}
        out = self.runs / f"{name}-{seed}"
        common = {"encoder": "static", "seed": seed, "tune": "no", "overwrite": True}
        return recollect.train(self.data, out=out, **(common | budget | flags))

    def measure(self, run: Path, seed: int) -> Quality:
        """Measure a run on the test texts of a seed: with lambda 0, with lambda 0.5, and at each lambda of a curve."""
        return measure(run, self.queries(seed), "cpu", with_ranker=False)

    def queries(self, seed: int) -> Queries:
        """The test texts of a seed."""
        return _draw_queries(self.data, seed)


@functools.cache
def draw_sample(folder: Path | None, work: Path) -> Sample:
    """Draw a sample of a dataset folder, or of the built-in sample dataset if the folder is None."""
    if folder is None:
        folder = work / "sample"
        if not folder.is_dir():
            write_sample(folder)
    folder = folder.resolve()
    dataset = open_dataset(folder, empty_texts="drop")
    train, test = dataset.read_split("train"), dataset.read_split("test")
    train = train.where(_choose(len(train), INSTANCES, seed=0), np.ones(len(dataset.labels), dtype=bool))
    used = np.zeros(len(dataset.labels), dtype=bool)
    used[train.labels.indices] = True
    test = test.where(np.ones(len(test), dtype=bool), used)
    sample = Sample(work / folder.name / "data", work / folder.name / "runs")
    sample.data.mkdir(parents=True, exist_ok=True)
    _write(sample.data / "labels.jsonl.gz", dataset.labels.where(used))
    train = train.where(np.ones(len(train), dtype=bool), used)
    _write(sample.data / "train.jsonl.gz", train.entries, train.labels)
    test = test.where(np.diff(test.labels.indptr) > 0, np.ones(int(used.sum()), dtype=bool))
    _write(sample.data / "test.jsonl.gz", test.entries, test.labels)
    return sample


@functools.cache
def _draw_queries(data: Path, seed: int) -> Queries:
    dataset = open_dataset(data)
    test, labels = dataset.read_split("test"), dataset.labels
    chosen = _choose(len(test), TEST_TEXTS, seed)
    return Queries(labels, test.where(chosen, np.ones(len(labels), dtype=bool)), (0.55, 1.5), frozen=False)


def _choose(rows: int, most: int, seed: int) -> Bool[np.ndarray, " row"]:
    chosen = np.zeros(rows, dtype=bool)
    chosen[np.random.default_rng(seed).permutation(rows)[:most]] = True
    return chosen


def _write(path: Path, entries: Entries, labels: LabelSets | None = None) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for number, (uid, text) in enumerate(zip(entries.uids.to_pylist(), entries.texts.to_pylist(), strict=True)):
            row: dict[str, Any] = {"uid": uid, "text": text}
            if labels is not None:
                row["labels"] = labels.indices[labels.indptr[number] : labels.indptr[number + 1]].tolist()
            file.write(json.dumps(row) + "\n")
