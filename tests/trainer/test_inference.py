from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from recollect.service.bundle.values import Matrix, Values
from recollect.service.predictor import scoring, searcher
from recollect.service.predictor.searcher import Neighbours
from recollect.trainer.memory.inference import InferenceSetting, predict

LAMBDAS = (0.0, 0.3, 1.0)
TEMPERATURES = (0.01, 0.04, 0.3)


class Memory(NamedTuple):
    """The nearest instances and labels of each query, and the labels of the instances."""

    instances: Neighbours
    labels: Neighbours
    values: sparse.csr_matrix


def neighbours(rng: np.random.Generator, queries: int, keys: int, found: int, padded: bool) -> Neighbours:
    """Draw random lists of keys, best first. With `padded`, some queries have fewer keys or no keys."""
    similarities = -np.sort(-rng.uniform(-1, 1, size=(queries, found)).astype(np.float32), axis=1)
    rows = np.stack([rng.permutation(keys)[:found] for _ in range(queries)])
    if padded:
        for query, last in enumerate(rng.integers(0, found + 1, size=queries)):
            similarities[query, last:], rows[query, last:] = -np.inf, -1
    return Neighbours(similarities, rows)


def random_memory(seed: int) -> Memory:
    """Draw a memory whose instances have zero to all labels, one or two blocks of queries, and lists of keys."""
    rng = np.random.default_rng(seed)
    instances, labels, queries = rng.integers(1, 14), rng.integers(1, 10), rng.choice([1, 3, 70])
    shares = rng.choice([0, 0.3, 1], size=(instances, 1))
    values = sparse.csr_matrix((rng.random((instances, labels)) < shares).astype(np.float32))
    return Memory(
        neighbours(rng, queries, instances, int(rng.integers(1, instances + 1)), padded=bool(rng.random() < 0.3)),
        neighbours(rng, queries, labels, int(rng.integers(1, labels + 1)), padded=bool(rng.random() < 0.3)),
        values,
    )


def served(memory: Memory, setting: InferenceSetting) -> scoring.Ranking:
    """Compute the ranking of the service, in float64, for the same two lists of keys."""
    values = Values(Matrix(memory.values.indptr, memory.values.indices), memory.values.shape[1])
    instances, labels = (
        searcher.Neighbours(part.similarities[:, : setting.top_b].astype(np.float64), part.keys[:, : setting.top_b])
        for part in (memory.instances, memory.labels)
    )
    labels = searcher.Neighbours(labels.similarities, np.where(labels.keys < 0, -1, labels.keys + values.instances))
    found = {0: labels, 1: instances}.get(setting.lambda_) or searcher.merge(instances, labels, setting.top_b)
    return scoring.score_labels(scoring.weigh_keys(found, setting.temperature, values), setting.lambda_, values).best()


def served_labels(memory: Memory, setting: InferenceSetting, depth: int) -> list[list[int]]:
    ranking = served(memory, setting)
    rows = [ranking.label[(ranking.query == query) & (ranking.score > 0)] for query in range(len(memory.labels.keys))]
    return [row[:depth].tolist() + [-1] * (depth - len(row)) for row in rows]


def has_near_ties(memory: Memory, setting: InferenceSetting) -> bool:
    """Whether two scores are so close that rounding may change their order."""
    ranking = served(memory, setting)
    falls = ranking.score[:-1] - ranking.score[1:]
    return bool(((ranking.query[:-1] == ranking.query[1:]) & (falls > 0) & (falls < 1e-11 * ranking.score[:-1])).any())


def predicted_labels(memory: Memory, setting: InferenceSetting, depth: int) -> list[list[int]]:
    ((predicted, best),) = predict(*memory, [setting], depth)
    assert predicted == setting
    return best.tolist()


def with_random_memories(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with random memories and settings."""
    random_arguments = given(
        seed=st.integers(0, 2**32 - 1),
        lambda_=st.sampled_from(LAMBDAS),
        temperature=st.sampled_from(TEMPERATURES),
        top_b=st.integers(1, 30),
        depth=st.integers(1, 12),
    )
    return settings(max_examples=40, deadline=None)(random_arguments(test))


@with_random_memories
def test_scores_equal_those_of_the_service(
    seed: int, lambda_: float, temperature: float, top_b: int, depth: int
) -> None:
    memory, setting = random_memory(seed), InferenceSetting(lambda_, temperature, top_b)
    ranking = served(memory, setting)
    score = np.zeros(
        (len(memory.labels.keys), memory.values.shape[1] + 1)
    )  # the last column belongs to the placeholder -1 and stays 0
    score[ranking.query, ranking.label] = ranking.score
    best = np.array(predicted_labels(memory, setting, depth))
    assert all(len(set(row) - {-1}) == np.count_nonzero(np.array(row) >= 0) for row in best.tolist())
    expected = -np.sort(-score, axis=1)[:, :depth]
    expected = np.pad(expected, ((0, 0), (0, max(0, depth - expected.shape[1]))))
    np.testing.assert_allclose(np.take_along_axis(score, best, axis=1), expected, rtol=1e-11, atol=0)


@with_random_memories
def test_labels_equal_those_of_the_service(
    seed: int, lambda_: float, temperature: float, top_b: int, depth: int
) -> None:
    memory, setting = random_memory(seed), InferenceSetting(lambda_, temperature, top_b)
    if not has_near_ties(memory, setting):
        assert predicted_labels(memory, setting, depth) == served_labels(memory, setting, depth)


@with_random_memories
def test_filtered_labels_are_removed_and_the_next_labels_move_up(
    seed: int, lambda_: float, temperature: float, top_b: int, depth: int
) -> None:
    memory, setting = random_memory(seed), InferenceSetting(lambda_, temperature, top_b)
    shape = (len(memory.labels.keys), memory.values.shape[1])
    removed = np.random.default_rng(seed).random(shape) < 0.4
    ((_, best),) = predict(*memory, [setting], depth, sparse.csr_matrix(removed.astype(np.float32)))
    whole = predicted_labels(memory, setting, shape[1])
    for query, row in enumerate(best.tolist()):
        kept = [label for label in whole[query] if label >= 0 and not removed[query, label]][:depth]
        assert row == kept + [-1] * (depth - len(kept))


def test_equal_scores_are_ordered_by_label_position() -> None:
    values = sparse.csr_matrix(np.ones((1, 200), dtype=np.float32))
    one = Neighbours(np.array([[0.5]], dtype=np.float32), np.array([[0]]))
    for lambda_ in (0.5, 1.0):
        memory, setting = Memory(one, one, values), InferenceSetting(lambda_, 0.04, 2)
        assert predicted_labels(memory, setting, 5) == served_labels(memory, setting, 5) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_labels_without_votes_are_not_returned(lambda_: float) -> None:
    values = sparse.csr_matrix(np.array([[0, 0, 0], [0, 1, 0]], dtype=np.float32))
    instances = Neighbours(np.array([[0.9, 0.8], [0.9, 0.1]], dtype=np.float32), np.array([[0, 1], [0, 1]]))
    labels = Neighbours(np.array([[0.7], [0.2]], dtype=np.float32), np.array([[2], [2]]))
    expected = {0.0: [[2, -1], [2, -1]], 0.3: [[-1, -1], [-1, -1]], 1.0: [[-1, -1], [-1, -1]]}[lambda_]
    assert predicted_labels(Memory(instances, labels, values), InferenceSetting(lambda_, 0.04, 1), 2) == expected


@pytest.mark.parametrize("seed", [0, 1])
def test_predicting_many_settings_at_once_gives_the_labels_of_one_setting_at_a_time(seed: int) -> None:
    memory = random_memory(seed)
    many = [
        InferenceSetting(lambda_, temperature, top_b)
        for lambda_ in (*LAMBDAS, 0.7)
        for temperature in TEMPERATURES
        for top_b in (1, 4, 50)
    ]
    at_once = list(predict(*memory, many, 6))
    assert [setting for setting, _ in at_once] == many
    for setting, best in at_once:
        assert best.tolist() == predicted_labels(memory, setting, 6)
