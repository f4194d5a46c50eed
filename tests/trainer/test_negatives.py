from __future__ import annotations

import numpy as np
import pytest

from recollect.trainer.distributed import ALONE
from recollect.trainer.sharded import Sharded
from recollect.trainer.training.negatives import HardNegatives, mine
from tests.trainer.helpers import label_sets, random_sets, random_units


@pytest.mark.parametrize("top", [1, 6, 100])
def test_mined_labels_are_the_nearest_labels_except_the_true_labels(top: int) -> None:
    rng = np.random.default_rng(0)
    labels = 23
    sets = random_sets(rng, 30, labels)
    queries, label_keys = random_units(rng, len(sets)), random_units(rng, labels)
    mined = mine(queries, label_keys, label_sets(sets), top, "exact", "cpu", ALONE).labels.own
    assert mined.shape == (len(sets), min(top, labels))
    for query, own, found in zip(queries.astype(np.float64), sets, mined, strict=True):
        nearest = np.argsort(-(label_keys @ query))[:top].tolist()
        assert found.tolist() == [-1 if label in own else label for label in nearest]


@pytest.mark.parametrize("search", ["exact", "approximate"])
def test_true_labels_of_an_instance_are_never_its_negatives(search: str) -> None:
    rng = np.random.default_rng(0)
    labels = 400
    sets = random_sets(rng, 60, labels)
    mined = mine(random_units(rng, 60), random_units(rng, labels), label_sets(sets), 50, search, "cpu", ALONE)
    assert any((row >= 0).any() for row in mined.labels.own)
    assert all(not own & set(row.tolist()) for own, row in zip(sets, mined.labels.own, strict=True))


@pytest.mark.parametrize("m", [0, 2, 5])
def test_at_most_m_distinct_negatives_are_drawn_for_a_row(m: int) -> None:
    mined = HardNegatives(Sharded.of(np.array([[4, -1, 2, 9], [-1, -1, -1, -1], [-1, 7, -1, -1]], dtype=np.int32)))
    for seed in range(50):
        drawn = [mined.draw(np.array([row]), m, np.random.default_rng(seed)).tolist() for row in range(3)]
        assert [len(labels) for labels in drawn] == [min(m, 3), 0, min(m, 1)]
        assert len(set(drawn[0])) == len(drawn[0])
        assert set(drawn[0]) <= {4, 2, 9}
        assert set(drawn[2]) <= {7}
