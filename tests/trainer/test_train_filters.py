"""Train filters: labels that are removed from the predictions for an instance, wherever an instance is a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.memory.tune import tune
from recollect.trainer.settings import TuneSettings
from recollect.trainer.training import train as loop
from recollect.trainer.training.negatives import HardNegatives
from tests.trainer.runs import Train

PRODUCTS = [f"{first} {second}" for first in ("red", "blue", "garden", "lazy") for second in ("chair", "dog", "lawn")]


@pytest.fixture
def products(tmp_path: Path) -> Path:
    """A product-to-product dataset: the products are instances and labels. A product's label is the next product.

    Each instance excludes the label that is the same product, half of them in a filter file.
    """
    folder, count = tmp_path / "products", len(PRODUCTS)
    folder.mkdir()
    labels = [{"uid": f"P{row}", "text": text} for row, text in enumerate(PRODUCTS)]
    instances = [
        {"uid": f"P{row}", "text": text, "labels": [(row + 1) % count]} | ({"exclude": [f"P{row}"]} if row % 2 else {})
        for row, text in enumerate(PRODUCTS)
    ]
    for name, rows in (("labels", labels), ("train", instances)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "filter_labels_train.txt").write_text("".join(f"{row} {row}\n" for row in range(0, count, 2)))
    return folder


def own_products() -> list[list[int]]:
    return [[row, row] for row in range(len(PRODUCTS))]


def test_filtered_labels_are_never_mined(train: Train, products: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mined: list[HardNegatives] = []
    mine = loop.mine

    def watched(*arguments: Any) -> HardNegatives:
        mined.append(mine(*arguments))
        return mined[-1]

    monkeypatch.setattr(loop, "mine", watched)
    more = ["--mine-top", 3, "--label-inputs", "text", "--epochs", 1]
    assert train(*more, dataset=products).status == 0
    assert mined
    for row, found in enumerate(mined[0].labels.own.tolist()):
        assert row not in found
        assert any(label >= 0 for label in found)


def test_memory_contains_the_filtered_pairs_of_the_dataset(train: Train, products: Path, run_folder: Path) -> None:
    assert train("--epochs", 0, dataset=products).status == 0
    memory = open_memory(run_folder / "memory")
    assert memory.filtered_pairs.tolist() == own_products()
    assert memory.filtered_labels.indices.tolist() == list(range(len(PRODUCTS)))


def test_tuning_does_not_count_filtered_labels_as_wrong_answers(train: Train, products: Path, run_folder: Path) -> None:
    """The label that is the query itself is the nearest label. Without the filter, no true label can be the first."""
    assert train("--epochs", 0, dataset=products).status == 0
    grid: dict[str, Any] = {"lambda": [0], "top_b": [100], "temperature": [0.05], "label_key_alpha": [0]}
    settings = TuneSettings(run=run_folder, metric="P@1", **grid)
    memory = open_memory(run_folder / "memory")
    keys = np.asarray(memory.keys, dtype=np.float64)
    similarities = keys[: len(PRODUCTS)] @ keys[len(PRODUCTS) :].T
    assert (similarities.argmax(axis=1) == np.arange(len(PRODUCTS))).all()
    np.fill_diagonal(similarities, -np.inf)
    right = similarities.argmax(axis=1) == (np.arange(len(PRODUCTS)) + 1) % len(PRODUCTS)
    assert right.any()
    scores = {trial.lambda_: trial.score for trial in tune(settings).trials}
    assert scores[0] == pytest.approx(100 * right.mean())


@pytest.mark.parametrize("pair", [[-1, 0], [0, 12]])
def test_memory_with_filters_out_of_range_is_refused(
    train: Train, products: Path, run_folder: Path, pair: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert train("--epochs", 0, dataset=products).status == 0
    path = run_folder / "memory" / "filtered_pairs.npy"
    np.save(path, np.array([*own_products(), pair]))
    assert recollect.main(["tune", str(run_folder)]) == 2
    assert "filtered_pairs.npy: expected pairs of an instance below 12 and a label below 12" in capfd.readouterr().err
