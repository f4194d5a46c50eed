from __future__ import annotations

import tracemalloc
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.core.bundle.values import Matrix, Values
from recollect.core.neighbours import Neighbours
from recollect.core.scoring import Ranking, score_labels, weigh_keys

LAMBDAS = (0.0, 0.3, 1.0)
TEMPERATURES = (1e-4, 0.04, 1.0, 100.0)


class Memory(NamedTuple):
    values: Values
    neighbours: Neighbours


def random_memory(seed: int) -> Memory:
    """Random instances with zero or more labels, queries with few or no keys, and similarities with ties."""
    rng = np.random.default_rng(seed)
    instances, labels, queries = rng.integers(1, 12), rng.integers(1, 9), rng.integers(1, 5)
    rows = [np.flatnonzero(rng.random(labels) < rng.choice([0, 0.3, 1])) for _ in range(instances)]
    values = Values(Matrix(np.cumsum([0, *map(len, rows)]), np.concatenate(rows).astype(np.int32)), int(labels))
    top_b = int(rng.integers(1, instances + labels + 1))
    keys = np.stack([rng.permutation(instances + labels)[:top_b] for _ in range(queries)])
    similarities = np.round(rng.uniform(-1, 1, size=keys.shape), rng.integers(1, 8)).astype(np.float32)
    for query, found in enumerate(rng.integers(0, top_b + 1, size=queries)):
        keys[query, found:], similarities[query, found:] = -1, -np.inf
    return Memory(values, Neighbours(similarities, keys))


def brute_force(memory: Memory, temperature: float, lambda_: float) -> np.ndarray:
    """p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I], as dense matrices in float64."""
    values, neighbours = memory
    y = np.zeros((values.instances, values.labels))
    for row in range(values.instances):
        y[row, values.gather(np.array([row]))[1]] = 1
    v = np.concatenate([lambda_ * y, (1 - lambda_) * np.eye(values.labels)])
    p = np.zeros((len(neighbours.keys), values.labels))
    for query, keys in enumerate(neighbours.keys):
        found = keys >= 0
        if found.any():
            logits = neighbours.similarities[query, found].astype(np.float64) / temperature
            weights = np.exp(logits - logits.max())
            p[query] = weights / weights.sum() @ v[keys[found]]
    return p


def rank(neighbours: Neighbours, temperature: float, lambda_: float, values: Values) -> Ranking:
    return score_labels(weigh_keys(neighbours, temperature, values), lambda_, values).best()


def dense(ranking: Ranking, queries: int, labels: int) -> np.ndarray:
    p = np.zeros((queries, labels))
    p[ranking.query, ranking.label] = ranking.score
    return p


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), lambda_=st.sampled_from(LAMBDAS), temperature=st.sampled_from(TEMPERATURES))
def test_scores_equal_the_dense_formula(seed: int, lambda_: float, temperature: float) -> None:
    memory = random_memory(seed)
    values, neighbours = memory
    ranking = rank(neighbours, temperature, lambda_, values)
    p = brute_force(memory, temperature, lambda_)
    np.testing.assert_allclose(dense(ranking, *p.shape), p, rtol=0, atol=1e-12)
    assert len(set(zip(ranking.query, ranking.label, strict=True))) == len(ranking.label)
    rows = list(zip(ranking.query, -ranking.score, ranking.label, strict=True))
    assert rows == sorted(rows), "labels are sorted by falling score"


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
def test_an_instance_with_a_count_votes_as_equal_instances_do(lambda_: float) -> None:
    rows = [[0, 2], [1], [0, 2], [0, 2]]
    similarities, label_key = np.array([0.9, 0.8, 0.9, 0.9], dtype=np.float32), np.array([0.7], dtype=np.float32)

    def score(chosen: list[int], log_counts: np.ndarray) -> dict[int, float]:
        kept = [rows[row] for row in chosen]
        indptr = np.cumsum([0, *map(len, kept)])
        live = Matrix(indptr, np.concatenate(kept).astype(np.int32))
        values = Values(Matrix.empty(np.int32), 3, live, log_counts)
        found = np.concatenate([similarities[chosen], label_key])[None]
        keys = np.array([[*range(len(chosen)), len(chosen) + 1]])
        ranking = rank(Neighbours(found, keys), 0.1, lambda_, values)
        return dict(zip(ranking.label.tolist(), ranking.score.tolist(), strict=True))

    assert score([0, 1], np.log([3, 1])) == pytest.approx(score([0, 1, 2, 3], np.zeros(4)))


def test_memory_use_of_scoring_does_not_grow_with_the_number_of_labels() -> None:
    labels = 10**9
    values = Values(Matrix(np.array([0, 2]), np.array([7, labels - 1], dtype=np.int32)), labels)
    keys = np.tile([0, 1 + 7, 1 + labels - 1], (64, 1))
    neighbours = Neighbours(np.full(keys.shape, 0.5, dtype=np.float32), keys)
    tracemalloc.start()
    try:
        ranking = rank(neighbours, 0.04, 0.3, values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ranking.label.tolist() == [7, labels - 1] * 64
    np.testing.assert_allclose(ranking.score, 1 / 3, atol=1e-12)
    assert peak < 1 << 20
