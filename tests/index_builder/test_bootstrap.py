"""Confidence intervals of the metrics: resampled queries, and the spread of the metrics."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from recollect.core.reranker.assign import best_set_sizes
from recollect.index_builder.evaluation.bootstrap import Statistics, bootstrap, means
from recollect.index_builder.evaluation.measured import probability_statistics, ranking_statistics, report
from recollect.index_builder.evaluation.probabilities import JudgedProbabilities, brier, example_f1, reliability
from recollect.trainer.metrics import hits

QUERIES, LABELS, DEPTH, INSTANCES, PROPENSITY = 60, 40, 20, 900, (0.55, 1.5)
RNG = np.random.default_rng(7)
PREDICTIONS = np.argsort(RNG.random((QUERIES, LABELS)), axis=1)[:, :DEPTH]
PREDICTIONS[3, 4:] = -1  # a query with few predictions
TRUTH = sparse.csr_matrix(RNG.random((QUERIES, LABELS)) < 0.1)
COUNTS = RNG.integers(0, 150, LABELS)
HIT, SIZES = hits(PREDICTIONS, TRUTH), np.diff(TRUTH.indptr)
PROBABILITIES = np.where(PREDICTIONS < 0, 0, np.sort(RNG.random((QUERIES, DEPTH)), axis=1)[:, ::-1])


def values(statistics: list[Statistics], counts: np.ndarray) -> dict[str, float]:
    return {
        name: value
        for each in statistics
        for name, value in zip(each.names, each.values(counts[None].astype(float))[0].tolist(), strict=True)
    }


@pytest.mark.parametrize("counts", [np.ones(QUERIES, dtype=int), np.random.default_rng(0).integers(0, 4, QUERIES)])
def test_metrics_of_a_resample_equal_those_of_its_queries(counts: np.ndarray) -> None:
    rows = np.repeat(np.arange(QUERIES), counts)
    found = values(ranking_statistics(PREDICTIONS, HIT, TRUTH, COUNTS, INSTANCES, PROPENSITY), counts)
    expected = report(PREDICTIONS[rows], TRUTH[rows], COUNTS, INSTANCES, PROPENSITY)
    assert found == pytest.approx({name: value for name, value in expected.items() if value is not None})


@pytest.mark.parametrize("k", [1, 5])
def test_calibration_error_and_brier_score_of_a_resample_equal_those_of_its_queries(k: int) -> None:
    counts = np.random.default_rng(1).integers(0, 4, QUERIES)
    rows = np.repeat(np.arange(QUERIES), counts)
    found = values(probability_statistics(JudgedProbabilities(PROBABILITIES, HIT, SIZES)), counts)
    probabilities, hit, sizes = PROBABILITIES[rows], HIT[rows], SIZES[rows]
    f1 = 100 * example_f1(hit, sizes, best_set_sizes(probabilities)).mean()
    expected = [reliability(probabilities, hit, k).expected_error, brier(probabilities, hit, sizes).mean(), f1]
    assert [found[name] for name in (f"ECE@{k}", "Brier", "F1 assigned")] == pytest.approx(expected)


def test_interval_of_a_mean_is_as_wide_as_theory_says() -> None:
    scores = np.random.default_rng(2).random(500)
    ((found),) = bootstrap([[means({"score": scores})]])
    error = scores.std() / np.sqrt(500)
    low, high = found["score"].interval
    assert (low, high) == pytest.approx((scores.mean() - 1.96 * error, scores.mean() + 1.96 * error), abs=0.2 * error)


def test_difference_is_paired() -> None:
    hard = np.random.default_rng(3).random(300)
    first, second = bootstrap([[means({"score": hard})], [means({"score": hard + 0.01})]])
    gain = second["score"] - first["score"]
    assert gain.interval == pytest.approx((0.01, 0.01))
    assert first["score"].interval[1] - first["score"].interval[0] > 0.05


def test_interval_encloses_a_calibration_error_that_is_too_high_in_every_resample() -> None:
    rng = np.random.default_rng(4)
    probability = rng.random((400, 1))
    judged = JudgedProbabilities(probability, rng.random((400, 1)) < probability, np.ones(400, dtype=int))
    (found,) = bootstrap([probability_statistics(judged)])
    error = found["ECE@1"]
    assert error.resampled.mean() > error.value
    assert error.interval[0] < error.value < error.interval[1]
