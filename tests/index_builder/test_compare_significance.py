"""The paired t-test and its summary in words."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from recollect.index_builder.compare.significance import PairedTest, paired_tests, verdict


def compared(first: np.ndarray, second: np.ndarray) -> PairedTest:
    (found,) = paired_tests({"P@1": first}, {"P@1": second})
    return found


def test_t_statistic_and_p_value_equal_the_textbook_formula() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.random(200), rng.random(200)
    found, differences = compared(first, second), first - second
    t = differences.mean() / (differences.std(ddof=1) / np.sqrt(200))
    assert (found.difference, found.t) == pytest.approx((100 * differences.mean(), t))
    assert found.p == pytest.approx(2 * student.sf(abs(t), df=199))
    assert found.significant == (found.p is not None and found.p < 0.05)


def test_interval_of_the_difference_is_as_wide_as_the_t_test_says() -> None:
    rng = np.random.default_rng(5)
    first, second = rng.random(400), rng.random(400)
    found = compared(first, second)
    half = 1.96 * 100 * (first - second).std() / np.sqrt(400)
    assert found.interval == pytest.approx((found.difference - half, found.difference + half), abs=half / 5)


def test_clear_difference_is_significant_in_both_directions() -> None:
    rng = np.random.default_rng(4)
    worse = rng.random(500) / 2
    better = worse + 0.1 + 0.01 * rng.random(500)
    for first, second, sign in ((better, worse, 1), (worse, better, -1)):
        found = compared(first, second)
        assert found.significant
        assert found.difference * sign > 10


def test_equal_scores_give_no_difference_and_no_nan() -> None:
    scores = np.array([0.2, 1.0, 0.0])
    assert compared(scores, scores + 1e-17) == PairedTest("P@1", 0.0, 0.0, 1.0, (0.0, 0.0))


def test_difference_that_is_equal_for_all_queries_is_significant() -> None:
    averaged = np.full(4, 1 / 3 + 1 / 3 + 1 / 3) - np.array([0, 1e-16, 0, 0])
    found = compared(averaged, np.zeros(4))
    assert (found.difference, found.t, found.p) == (pytest.approx(100), None, 0.0)
    assert found.significant


def test_test_over_one_query_has_no_t_statistic() -> None:
    found = compared(np.array([1.0]), np.array([0.0]))
    assert (found.difference, found.t, found.p, found.significant) == (100, None, None, False)


def test_verdict_names_the_better_contestant_for_each_metric() -> None:
    tests = [
        PairedTest("P@1", 1.5, 3.0, 0.01, (0.5, 2.5)),
        PairedTest("P@3", -0.25, -1.0, 0.3, (-0.75, 0.25)),
        PairedTest("P@5", 0.0, 0.0, 1.0, (0.0, 0.0)),
    ]
    assert verdict("prime", "rae", tests) == (
        "Significant at .05: P@1 (prime by 1.50 points). Not significant: P@3 (rae by 0.25 points). No difference: P@5."
    )
    assert verdict("prime", "rae", tests[2:]) == "Nothing is significant at .05. No difference: P@5."
