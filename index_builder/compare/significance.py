"""Whether one contestant is significantly better than another: paired over queries, a t-test (RAE-XMC, B.3) and the
confidence interval of the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.stats import ttest_1samp

from recollect.index_builder.evaluation.bootstrap import bootstrap, means

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
        interval: The ends of the 95% confidence interval of the difference (bootstrap over queries), in points.
    """

    metric: str
    difference: float
    t: float | None
    p: float | None
    interval: tuple[float, float]

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < _LEVEL


def paired_tests(
    first: dict[str, Float[np.ndarray, " query"]], second: dict[str, Float[np.ndarray, " query"]]
) -> list[PairedTest]:
    """Test the difference between two contestants by each metric.

    Args:
        first: For each metric the scores of the first contestant, one for each query, as fractions.
        second: Scores of the second contestant, in the same form.
    """
    differences = {metric: first[metric] - second[metric] for metric in first}
    differences = {metric: np.where(np.abs(each) < _ROUNDING, 0.0, each) for metric, each in differences.items()}
    (sampled,) = bootstrap([[means({metric: 100 * each for metric, each in differences.items()})]])
    return [
        PairedTest(metric, sampled[metric].value, *_t_test(each), replace(sampled[metric], least=-100.0).interval)
        for metric, each in differences.items()
    ]


def _t_test(differences: Float[np.ndarray, " query"]) -> tuple[float | None, float | None]:
    """Student's t statistic, and the probability of at least this difference by chance."""
    if not differences.any():
        return 0.0, 1.0
    if len(differences) < 2:
        return None, None
    if np.ptp(differences) < _ROUNDING:
        return None, 0.0
    t, p = ttest_1samp(differences, 0.0)
    return float(t), float(p)


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
