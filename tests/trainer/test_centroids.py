from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect.trainer.heads.centroids import Centroids
from recollect.trainer.sharded import Sharded
from recollect.trainer.training.batches import Batch, Batches
from tests.trainer.helpers import label_sets, random_units

DIM, LABELS, INSTANCES = 8, 10, 30
WITHOUT_INSTANCE, HELD_OUT = 9, 4  # label without instances, held-out instance without labels in `values`
TEXTS = random_units(np.random.default_rng(1), LABELS)
VECTORS = random_units(np.random.default_rng(2), INSTANCES)
_random = np.random.default_rng(3)
SETS = label_sets(
    [] if row == HELD_OUT else np.flatnonzero(_random.random(LABELS - 1) < 0.2).tolist() for row in range(INSTANCES)
)
OWN = [set(SETS.indices[SETS.indptr[row] : SETS.indptr[row + 1]].tolist()) for row in range(INSTANCES)]
ALL = torch.arange(LABELS)


@pytest.fixture
def centroids() -> Centroids:
    centroids = Centroids(LABELS, DIM)
    centroids.start(Sharded.of(VECTORS), SETS.to_csr(LABELS))
    return centroids


def batch(step: int, hard_negatives: int | None = 0, size: int = 6) -> Batch:
    return Batches(SETS, LABELS, np.arange(INSTANCES), size, 1, hard_negatives, seed=0).at(step, None)


def read(centroids: Centroids, labels: np.ndarray | None = None) -> np.ndarray:
    rows = ALL if labels is None else torch.from_numpy(labels)
    found: np.ndarray = centroids(rows, torch.from_numpy(TEXTS)[rows]).numpy()
    return found


def written(vectors: np.ndarray, label: int, left_out: np.ndarray | None = None) -> np.ndarray:
    """Return the unit mean of a label's instances without `left_out`, or the text vector if no instance remains."""
    gone = set() if left_out is None else set(left_out.tolist())
    own = [vectors[row] for row in range(INSTANCES) if label in OWN[row] and row not in gone]
    if not own:
        return TEXTS[label]
    total = np.sum(own, axis=0)
    centroid: np.ndarray = total / np.linalg.norm(total)
    return centroid


def test_centroid_starts_as_the_mean_of_the_instances_or_as_the_text_vector_without_instances(
    centroids: Centroids,
) -> None:
    for label, centroid in enumerate(read(centroids)):
        np.testing.assert_allclose(centroid, written(VECTORS, label), atol=1e-3)
    np.testing.assert_array_equal(read(centroids)[WITHOUT_INSTANCE], TEXTS[WITHOUT_INSTANCE])


@pytest.mark.parametrize("hard_negatives", [0, None], ids=["labels of the batch", "all labels"])
@pytest.mark.parametrize("size", [6, INSTANCES], ids=["some", "every instance"])
def test_queries_of_a_batch_are_left_out_of_the_centroids_of_the_pool(
    centroids: Centroids, hard_negatives: int | None, size: int
) -> None:
    step, before = batch(0, hard_negatives, size), read(centroids)
    centroids.leave_out(step)
    found = read(centroids, step.pool)
    for label, centroid in zip(step.pool.tolist(), found, strict=True):
        expected = written(VECTORS, label, step.rows)
        np.testing.assert_allclose(centroid, expected, atol=2e-3)
        if size == INSTANCES:
            # Bit for bit: a query that is left out leaves no rounding error.
            np.testing.assert_array_equal(centroid, TEXTS[label])
    assert np.abs(found - before[step.pool]).max() > 0.01


def test_follow_updates_query_vectors_with_momentum_and_only_the_centroids_of_their_labels(
    centroids: Centroids,
) -> None:
    expected, moved = VECTORS.copy(), np.zeros(LABELS, dtype=bool)
    random = np.random.default_rng(5)
    for number in range(10):
        step, before = batch(number), read(centroids)
        queries = random_units(random, len(step.rows))
        centroids.leave_out(step)
        centroids.follow(step, torch.from_numpy(queries))
        met: set[int] = set()
        for row, query in zip(step.rows.tolist(), queries, strict=True):
            expected[row] = (expected[row] + query) / 2
            met |= OWN[row]
        same = [label for label in range(LABELS) if label not in met]
        np.testing.assert_array_equal(read(centroids)[same], before[same])
        moved[list(met)] = True
    for label, centroid in enumerate(read(centroids)):
        np.testing.assert_allclose(centroid, written(expected, label), atol=1e-2)
    assert moved[:WITHOUT_INSTANCE].all()
    assert np.linalg.norm(read(centroids) - TEXTS, axis=1)[WITHOUT_INSTANCE] == 0
