"""Centroids with momentum, label by label against the written update."""

from __future__ import annotations

import numpy as np
import torch

from recollect.trainer.heads.centroids import MomentumCentroids
from recollect.trainer.sharded import Sharded
from recollect.trainer.training.batches import Batches
from tests.trainer.helpers import random_units
from tests.trainer.test_centroids import (
    DIM,
    INSTANCES,
    LABELS,
    OWN,
    SETS,
    TEXTS,
    VECTORS,
    WITHOUT_INSTANCE,
    written,
)


def started() -> MomentumCentroids:
    centroids = MomentumCentroids(LABELS, DIM)
    centroids.start(Sharded.of(VECTORS), SETS.to_csr(LABELS))
    return centroids


def read(centroids: MomentumCentroids) -> np.ndarray:
    found: np.ndarray = centroids(torch.arange(LABELS), torch.from_numpy(TEXTS)).numpy()
    return found


def test_centroid_starts_as_the_unit_mean_of_the_instances_or_as_the_text_vector_without_instances() -> None:
    for label, centroid in enumerate(read(started())):
        np.testing.assert_allclose(centroid, written(VECTORS, label), atol=1e-6)


def test_each_drawn_label_moves_by_a_twentieth_towards_the_mean_of_its_queries() -> None:
    centroids, random = started(), np.random.default_rng(5)
    expected = np.stack([written(VECTORS, label).astype(np.float64) for label in range(LABELS)])
    for step in range(20):
        batch = Batches(SETS, LABELS, np.arange(INSTANCES), 6, 1, 0, seed=0).at(step, None)
        queries, before = random_units(random, len(batch.rows)), read(centroids)
        centroids.leave_out(batch)
        np.testing.assert_array_equal(read(centroids), before)
        centroids.follow(batch, torch.from_numpy(queries))
        drawn: dict[int, list[np.ndarray]] = {}
        for query, key in zip(batch.positives.query, batch.positives.key, strict=True):
            drawn.setdefault(int(batch.pool[key]), []).append(queries[query])
            assert int(batch.pool[key]) in OWN[batch.rows[query]]
        for label, own in drawn.items():
            expected[label] = 0.95 * expected[label] + 0.05 * np.mean(own, axis=0)
    for label, centroid in enumerate(read(centroids)):
        np.testing.assert_allclose(centroid, expected[label] / np.linalg.norm(expected[label]), atol=1e-5)
    np.testing.assert_array_equal(read(centroids)[WITHOUT_INSTANCE], TEXTS[WITHOUT_INSTANCE])
