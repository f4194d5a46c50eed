"""The ranker's model: logits, their terms, and refusal of damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.errors import BundleError
from recollect.core.reranker.model import RankerModel
from tests.core.reranker.forests import random_file, walk

NAMES = ["vote", "similarity", "count"]


def random_rows(rng: np.random.Generator, count: int) -> np.ndarray:
    """Rows whose features often equal a threshold, lie outside of all thresholds, or are missing."""
    rows = rng.choice([-np.inf, -2, -1.5, -1, 0, 0.5, 1, 2, 3, np.inf, np.nan], size=(count, len(NAMES)))
    return rows.astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_logits_equal_a_walk_from_the_root_to_a_leaf_of_every_tree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    file, rows = random_file(rng, NAMES), random_rows(rng, 200)
    expected = [sum(walk(tree, row) for tree in file.trees) for row in rows]
    np.testing.assert_allclose(RankerModel(file).logits(rows), expected, atol=1e-12)


def test_contributions_sum_to_the_logit() -> None:
    rng = np.random.default_rng(0)
    model, rows = RankerModel(random_file(rng, NAMES)), random_rows(rng, 200)
    terms = model.contributions(rows)
    assert terms.shape == (200, len(NAMES) + 1)
    np.testing.assert_allclose(terms.sum(axis=1), model.logits(rows), atol=1e-12)


def stump(**changes: Any) -> dict[str, Any]:
    tree = {
        "feature": [0],
        "threshold": [0.5],
        "missing_left": [True],
        "left": [-1],
        "right": [-2],
        "mean": [0.1],
        "leaf": [-1.0, 1.0],
    }
    return {"format_version": 1, "features": NAMES, "trees": [tree | changes]}


def list_of_splits(splits: int) -> dict[str, Any]:
    """A tree whose splits each have a leaf on the left."""
    return {
        "feature": [0] * splits,
        "threshold": [0.0] * splits,
        "missing_left": [True] * splits,
        "left": [~leaf for leaf in range(splits)],
        "right": [*range(1, splits), ~splits],
        "mean": [0.0] * splits,
        "leaf": [0.0] * (splits + 1),
    }


def test_ranker_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "ranker.json"
    path.write_text(json.dumps(stump()))
    model = RankerModel.open(path, NAMES)
    assert model.logits(np.array([[0.5, 0, 0], [0.6, 0, 0], [np.nan, 0, 0]])).tolist() == [-1, 1, -1]
    others = RankerModel.open(path, ["length", *reversed(NAMES)])
    assert others.logits(np.array([[0, 0, 0, 0.6], [0.6, 0.6, 0.6, 0.5]])).tolist() == [1, -1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        json.dumps(stump() | {"format_version": 2}).encode(),
        json.dumps(stump() | {"features": ["vote", "vote"]}).encode(),
        json.dumps(stump(feature=[3])).encode(),
        json.dumps(stump(feature=[-1])).encode(),
        json.dumps(stump(left=[0])).encode(),  # the root is its own child
        json.dumps(stump(left=[-2])).encode(),  # one leaf twice, the other one never
        json.dumps(stump(leaf=[0.0])).encode(),
        json.dumps(stump(mean=[])).encode(),
        json.dumps(stump(leaf=[float("nan"), 1.0])).encode(),
        json.dumps(stump(**list_of_splits(64))).encode(),  # more leaves than a mask has bits
        json.dumps(stump() | {"trees": []}).encode(),
    ],
)
def test_damaged_ranker_file_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ranker.json"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"ranker\.json: expected a ranker"):
        RankerModel.open(path, NAMES)
