"""The set of labels with the highest expected F1, compared with all sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from recollect.core.reranker.assign import assigned_counts, best_set_sizes, expected_f1


def by_enumeration(probabilities: np.ndarray) -> dict[tuple[int, ...], float]:
    """The expected F1 of every set of labels, summed over all combinations of true labels."""
    outcomes = np.array(list(itertools.product([0, 1], repeat=len(probabilities))))
    weights = np.where(outcomes, probabilities, 1 - probabilities).prod(axis=1)
    return {
        tuple(chosen): float(weights @ (2 * (outcomes @ chosen) / np.maximum(outcomes.sum(axis=1) + chosen.sum(), 1)))
        for chosen in outcomes
    }


def falling(labels: int, seed: int) -> np.ndarray:
    return -np.sort(-(np.random.default_rng(seed).random(labels) ** 2))


@pytest.mark.parametrize("labels", range(1, 9))
def test_expected_f1_equals_the_sum_over_all_outcomes_and_no_set_has_a_higher_one(labels: int) -> None:
    for seed in range(3):
        probabilities = falling(labels, seed)
        found, sums = expected_f1(probabilities[None])[0], by_enumeration(probabilities)
        assert found == pytest.approx([sums[(1,) * size + (0,) * (labels - size)] for size in range(1, labels + 1)])
        assert found[best_set_sizes(probabilities[None])[0] - 1] == pytest.approx(max(sums.values()))


def test_size_is_the_best_one_below_the_limit_and_the_number_of_labels() -> None:
    flat = np.full(150, 0.9)
    rows = np.array([0, 0, 1, 150])
    assert assigned_counts(flat, rows, limit=1_000).tolist() == [0, 1, 100]
    assert assigned_counts(flat, rows, limit=7).tolist() == [0, 1, 7]
    assert assigned_counts(flat[:0], np.array([0, 0]), limit=7).tolist() == [0]
    assert assigned_counts(flat[:0], np.array([0]), limit=7).tolist() == []
