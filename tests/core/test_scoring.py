"""The scores of labels take as much memory as the labels that are found, not as all labels."""

from __future__ import annotations

import tracemalloc

import numpy as np

from recollect.core.bundle.values import Matrix, Values
from recollect.core.neighbours import Neighbours
from recollect.core.scoring import score_labels, weigh_keys


def test_memory_use_of_scoring_does_not_grow_with_the_number_of_labels() -> None:
    labels = 10**9
    values = Values(Matrix(np.array([0, 2]), np.array([7, labels - 1], dtype=np.int32)), labels)
    keys = np.tile([0, 1 + 7, 1 + labels - 1], (64, 1))
    neighbours = Neighbours(np.full(keys.shape, 0.5, dtype=np.float32), keys)
    score_labels(weigh_keys(neighbours, 0.04, values), 0.3, values).best()  # loads the compiled loops
    tracemalloc.start()
    try:
        ranking = score_labels(weigh_keys(neighbours, 0.04, values), 0.3, values).best()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ranking.label.tolist() == [7, labels - 1] * 64
    np.testing.assert_allclose(ranking.score, 1 / 3, atol=1e-12)
    assert peak < 1 << 20
