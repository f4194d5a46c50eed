"""Whether one contestant is better than another beyond chance: the paired t-test over queries (RAE-XMC, B.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.stats import ttest_rel

_LEVEL = 0.05
# Differences below this are rounding: of P@5 and nDCG@5, the least that can differ is far above.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class PairedTest:
    """One metric of the first contestant against the second.

    Attributes:
        metric: Its name.
        difference: Mean of the first minus mean of the second, in points.
        t: Student's statistic; None where all queries differ alike, so that nothing varies.
        p: Probability of such a difference, or a greater one, by chance alone; None where one query is no sample.
    """

    metric: str
    difference: float
    t: float | None
    p: float | None

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < _LEVEL


def paired_test(metric: str, first: Float[np.ndarray, " query"], second: Float[np.ndarray, " query"]) -> PairedTest:
    """Test the per-query scores of two contestants, as fractions."""
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
    """In words: which differences between the two are significant."""
    told = {
        test.metric: f"{test.metric} ({first if test.difference > 0 else second} by {abs(test.difference):.2f} points)"
        for test in tests
    }
    differing = [test for test in tests if test.difference != 0]
    significant = [told[test.metric] for test in differing if test.significant]
    others = [told[test.metric] for test in differing if not test.significant]
    equal = [test.metric for test in tests if test.difference == 0]
    parts = [f"Significant at .05: {', '.join(significant)}." if significant else "Nothing is significant at .05."]
    parts += [f"Not significant: {', '.join(others)}."] if others else []
    parts += [f"No difference: {', '.join(equal)}."] if equal else []
    return " ".join(parts)
