"""Centroids with momentum, label by label against the written update."""

from __future__ import annotations

import numpy as np
import torch

from recollect.trainer.heads.prototypes import Centroids
from recollect.trainer.sharded import Sharded
from recollect.trainer.training.batches import Batches
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


def written(label: int) -> np.ndarray:
    """Return the unit mean of a label's instances, or its text vector if it has none."""
    own = [VECTORS[row] for row in range(INSTANCES) if label in OWN[row]]
    if not own:
        return TEXTS[label]
    total = np.sum(own, axis=0)
    centroid: np.ndarray = total / np.linalg.norm(total)
    return centroid


def started() -> Centroids:
    centroids = Centroids(LABELS, DIM)
    centroids.start(Sharded.of(VECTORS), SETS.to_csr(LABELS))
    return centroids


def read(centroids: Centroids) -> np.ndarray:
    found: np.ndarray = centroids(torch.arange(LABELS), torch.from_numpy(TEXTS)).numpy()
    return found


def test_centroid_starts_as_the_unit_mean_of_the_instances_or_as_the_text_vector_without_instances() -> None:
    for label, centroid in enumerate(read(started())):
        np.testing.assert_allclose(centroid, written(label), atol=1e-6)


def test_each_drawn_label_moves_by_a_twentieth_towards_the_mean_of_its_queries() -> None:
    centroids, random = started(), np.random.default_rng(5)
    expected = np.stack([written(label).astype(np.float64) for label in range(LABELS)])
    for step in range(20):
        batch = Batches(SETS, LABELS, np.arange(INSTANCES), 6, 1, 0, seed=0).at(step, None)
        queries = random_units(random, len(batch.rows))
        pairs = batch.positives.query, batch.pool[batch.positives.key]
        centroids.follow(torch.from_numpy(queries), *pairs)
        drawn: dict[int, list[np.ndarray]] = {}
        for query, key in zip(batch.positives.query, batch.positives.key, strict=True):
            drawn.setdefault(int(batch.pool[key]), []).append(queries[query])
            assert int(batch.pool[key]) in OWN[batch.rows[query]]
        for label, own in drawn.items():
            expected[label] = 0.95 * expected[label] + 0.05 * np.mean(own, axis=0)
    for label, centroid in enumerate(read(centroids)):
        np.testing.assert_allclose(centroid, expected[label] / np.linalg.norm(expected[label]), atol=1e-5)
    np.testing.assert_array_equal(read(centroids)[WITHOUT_INSTANCE], TEXTS[WITHOUT_INSTANCE])
