"""Metrics of probabilities, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.core.bundle.manifest import Coverage
from recollect.index_builder.evaluation.probabilities import (
    JudgedProbabilities,
    best_fixed_size,
    brier,
    example_f1,
    reliability,
)

# Two queries with three predictions each; the second one lacks the third prediction.
PROBABILITIES = np.array([[0.94, 0.5, 0.1], [0.95, 0.2, 0.0]])
HIT = np.array([[True, False, False], [False, True, False]])
SIZES = np.array([1, 3])
JUDGED = JudgedProbabilities(PROBABILITIES, HIT, SIZES)


def test_calibration_error_is_the_mean_distance_of_probability_and_true_share_in_each_bin() -> None:
    assert reliability(PROBABILITIES, HIT, 1).expected_error == pytest.approx(0.445)  # 0.94 and 0.95: one bin
    bins = reliability(PROBABILITIES, HIT, 3)
    assert bins.predictions.tolist() == [1, 1, 1, 2]  # the missing prediction does not count
    assert bins.expected_error == pytest.approx((0.1 + 0.8 + 0.5 + 2 * 0.445) / 5)


def test_probability_of_one_falls_into_the_last_bin() -> None:
    assert reliability(np.array([[1.0]]), np.array([[True]]), 1).expected_error == 0


def test_brier_score_sums_over_labels_and_counts_a_true_label_that_is_not_predicted() -> None:
    first = 0.06**2 + 0.5**2 + 0.1**2
    second = 0.95**2 + 0.8**2 + 2
    assert brier(PROBABILITIES, HIT, SIZES) == pytest.approx([first, second])


def test_example_f1_compares_the_assigned_labels_of_each_query_with_its_true_labels() -> None:
    assert example_f1(HIT, SIZES, np.array([1, 2])) == pytest.approx([1, 2 / 5])
    assert example_f1(HIT, SIZES, 3) == pytest.approx([2 / 4, 2 / 6])
    assert example_f1(HIT, np.zeros(2, dtype=int), 0).tolist() == [0, 0]


def test_best_fixed_size_maximises_the_example_f1() -> None:
    scores = [example_f1(HIT, SIZES, k).mean() for k in (1, 2, 3)]
    assert best_fixed_size(HIT, SIZES) == 1 + np.argmax(scores)


def test_coverage_counts_the_true_labels_that_reach_the_probability() -> None:
    found = JUDGED.coverage([Coverage(share=0.5, probability=0.2), Coverage(share=0.2, probability=0.9)])
    assert found == [
        {"share": 0.5, "probability": 0.2, "found": 2 / 4, "labels": 2.0},
        {"share": 0.2, "probability": 0.9, "found": 1 / 4, "labels": 1.0},
    ]
