"""Paired t-test over queries: whether one contestant is significantly better than another (RAE-XMC, B.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.stats import ttest_rel

_LEVEL = 0.05
# Differences below this are rounding errors, because the smallest possible difference of P@5 or nDCG@5 is far larger.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class PairedTest:
    """Result of the test whether two contestants differ by one metric.

    Attributes:
        metric: Name of the metric.
        difference: Mean of the first contestant minus mean of the second, in percentage points.
        t: Student's t statistic; None if the difference is equal for all queries, or there is only one query.
        p: Probability of at least this difference by chance; None if there is only one query.
    """

    metric: str
    difference: float
    t: float | None
    p: float | None

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < _LEVEL


def paired_test(metric: str, first: Float[np.ndarray, " query"], second: Float[np.ndarray, " query"]) -> PairedTest:
    """Test the difference between two contestants.

    Args:
        metric: Name of the metric.
        first: Scores of the first contestant, one for each query, as fractions.
        second: Scores of the second contestant, in the same form.
    """
    differences = first - second
    mean = 100 * float(differences.mean())
    if np.abs(differences).max() < _ROUNDING:
        return PairedTest(metric, 0.0, 0.0, 1.0)
    if len(differences) < 2:
        return PairedTest(metric, mean, None, None)
    if np.ptp(differences) < _ROUNDING:
        return PairedTest(metric, mean, None, 0.0)
    t, p = ttest_rel(first, second)
    return PairedTest(metric, mean, float(t), float(p))


def verdict(first: str, second: str, tests: Sequence[PairedTest]) -> str:
    """Describe in a sentence which metrics differ significantly."""
    described = {
        test.metric: f"{test.metric} ({first if test.difference > 0 else second} by {abs(test.difference):.2f} points)"
        for test in tests
    }
    differing = [test for test in tests if test.difference != 0]
    significant = [described[test.metric] for test in differing if test.significant]
    others = [described[test.metric] for test in differing if not test.significant]
    equal = [test.metric for test in tests if test.difference == 0]
    parts = [f"Significant at .05: {', '.join(significant)}." if significant else "Nothing is significant at .05."]
    parts += [f"Not significant: {', '.join(others)}."] if others else []
    parts += [f"No difference: {', '.join(equal)}."] if equal else []
    return " ".join(parts)
