"""The answers on the built-in sample have at least this quality. The floors are a little below the figures of today."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.contract.make_store import write_encoder
from tests.processes import run, run_json, write_lines

# In percent, on the sentences of the most frequent labels. The static encoder starts with random vectors of words.
# Today: P@1 27.9, P@5 9.8, nDCG@5 37.6, PSP@5 43.7, R@100 78.1. Without training, nDCG@5 is 25.9.
FLOORS = {"P@1": 26.0, "P@5": 9.2, "nDCG@5": 35.5, "PSP@5": 41.0, "R@100": 75.5}
LABELS, DIM, MAX_LENGTH = 400, 64, 24


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The part of the built-in sample with the most frequent labels."""
    folder = tmp_path_factory.mktemp("sample")
    run("sample", folder / "whole")
    rows: dict[str, Any] = {
        name: [json.loads(line) for line in (folder / "whole" / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("labels", "train", "test")
    }
    uids = [label["uid"] for label in rows["labels"]]
    for row in [*rows["train"], *rows["test"]]:  # a label is named by its uid, or by its position
        row["labels"] = [uids[each] if isinstance(each, int) else each for each in row["labels"]]
    counts = Counter(label for row in rows["train"] for label in row["labels"])
    kept = set(sorted(counts, key=lambda label: (-counts[label], label))[:LABELS])
    (folder / "part").mkdir()
    write_lines(folder / "part" / "labels.jsonl", [label for label in rows["labels"] if label["uid"] in kept])
    for name in ("train", "test"):
        some = [row | {"labels": [each for each in row["labels"] if each in kept]} for row in rows[name]]
        write_lines(folder / "part" / f"{name}.jsonl", [row for row in some if row["labels"]])
    return folder / "part"


@pytest.fixture(scope="module")
def encoder(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with a random vector for each word of the sample."""
    words: set[str] = set()
    for name in ("labels", "train"):
        words.update(re.findall(r"\w+", (sample / f"{name}.jsonl").read_text("utf-8").lower()))
    folder = tmp_path_factory.mktemp("quality") / "encoder"
    write_encoder(folder, sorted(words), DIM)
    return folder


def test_trained_encoder_answers_the_sample_well(sample: Path, encoder: Path, tmp_path: Path) -> None:
    training = ("--epochs", 8, "--batch-size", 256, "--learning-rate", 0.01, "--validation-fraction", 0.05)
    lengths = ("--max-length", MAX_LENGTH, "--label-max-length", MAX_LENGTH)
    source = ("--encoder", "static", "--static-from", encoder)
    run("train", sample, "--out", tmp_path / "run", *source, *lengths, *training)
    run("build", tmp_path / "run", "--store", tmp_path / "store", "--index", "flat", "--lexical", "off", "--activate")
    report = run_json("evaluate", sample, "--store", tmp_path / "store", "--lambda", "0,0.5,1")
    labels_alone, both, instances_alone = (row for row in report["rows"] if row["order"] == "score")
    assert not {name: both[name] for name, floor in FLOORS.items() if both[name] < floor}
    assert both["nDCG@5"] > max(labels_alone["nDCG@5"], instances_alone["nDCG@5"])
    low, high = both["intervals"]["P@1"]
    assert low < both["P@1"] < high
