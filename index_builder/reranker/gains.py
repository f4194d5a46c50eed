"""Gains of the ranker over the votes on held-out texts: all metrics of all orders, and by the frequency of labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.core.bundle.manifest import Order
from recollect.index_builder.evaluation.measured import COVERAGE, MACRO_F1
from recollect.index_builder.evaluation.predictions import best_rows, pick
from recollect.trainer.metrics import SEGMENTS, PairedGain, by_label, hits, propensity_weights, query_scores

METRICS = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100", MACRO_F1, COVERAGE)
_SEGMENT_DEPTH = 5


@dataclass(frozen=True)
class RankerGain:
    """A metric in percent, of the votes, of the ranker, and of the order macro with the ranker's probabilities."""

    name: str  # of the metric, or of the segment of labels whose recall at 5 is measured
    votes: float
    ranker: float
    error: float  # standard error of the difference
    macro: float | None = None  # None without reliable probabilities

    def of_order(self, order: Order) -> float:
        """The metric of an order that the bundle can have."""
        values = {"score": self.votes, "probability": self.ranker, "macro": self.macro}
        value = values[order]
        assert value is not None
        return value

    @property
    def certain(self) -> bool:
        """Whether the ranker gains at least two standard errors."""
        return PairedGain(self.ranker - self.votes, self.error).exceeds(errors=2)


class Judge:
    """Measures rankings of held-out texts. The truth has the axes (query, label)."""

    def __init__(
        self,
        truth: sparse.csr_matrix,
        counts: Int[np.ndarray, " label"],
        instances: int,
        propensity: tuple[float, float],
    ) -> None:
        self._truth, self._counts = truth, counts
        self._weights = propensity_weights(counts, instances, *propensity)

    def gain(
        self,
        name: str,
        votes: Int[np.ndarray, "query 100"],
        ranker: Int[np.ndarray, "query 100"],
        macro: Int[np.ndarray, "query 100"] | None = None,
    ) -> RankerGain:
        """Compare rankings by one metric, such as nDCG@5, or by the recall at 5 of a segment of `SEGMENTS`."""
        before, after = self._scores(name, votes), self._scores(name, ranker)
        of_macro = None if macro is None else self.mean(name, macro)
        return RankerGain(name, float(before.mean()), float(after.mean()), PairedGain.of(before, after).error, of_macro)

    def mean(self, name: str, labels: Int[np.ndarray, "query 100"]) -> float:
        return float(self._scores(name, labels).mean())

    def segments(self) -> list[str]:
        """The segments of labels that have true labels."""
        counts = self._counts[self._truth.indices]
        return [name for name, (more, limit) in SEGMENTS.items() if ((counts > more) & (counts <= limit)).any()]

    def _scores(self, name: str, labels: Int[np.ndarray, "query 100"]) -> Float[np.ndarray, " unit"]:
        """Score each query, or each true label for a macro metric, so that the mean is the measure in percent."""
        if name in (MACRO_F1, COVERAGE):
            f1, found = by_label(labels, self._truth, _SEGMENT_DEPTH)
            return 100.0 * (f1 if name == MACRO_F1 else found)
        if name not in SEGMENTS:
            return query_scores(name, labels, self._truth, self._weights)
        more, limit = SEGMENTS[name]
        inside, best = (self._counts > more) & (self._counts <= limit), labels[:, :_SEGMENT_DEPTH]
        true = (hits(best, self._truth) & inside[best]).sum(axis=1)
        return np.asarray(100 * true / max(1, inside[self._truth.indices].sum()) * len(labels))


def format_gains(
    gains: list[RankerGain], segments: list[RankerGain], compared: tuple[str, str] = ("votes", "ranker")
) -> list[str]:
    """A table of the gains: metrics first, then the recall at 5 by frequency of labels."""
    has_macro = any(gain.macro is not None for gain in gains)
    head = f"{'':24}  {compared[0]:>7}  {compared[1]:>7}  {'gain':>7}  {'error':>6}" + (
        f"  {'macro':>7}" if has_macro else ""
    )
    rows = [(gain.name, gain) for gain in gains]
    rows += [(f"R@{_SEGMENT_DEPTH} of {gain.name} labels", gain) for gain in segments]
    return [head] + [
        f"{name:24}  {gain.votes:7.2f}  {gain.ranker:7.2f}  {gain.ranker - gain.votes:+7.2f}  {gain.error:6.2f}"
        + ("" if gain.macro is None else f"  {gain.macro:7.2f}")
        for name, gain in rows
    ]


def best_candidates(
    query: Int[np.ndarray, " candidate"], measure: Float[np.ndarray, " candidate"], queries: int
) -> Int[np.ndarray, "query 100"]:
    """The rows of the best 100 candidates of each query, by falling measure; -1 pads short lists."""
    order = np.lexsort((-measure, query))
    return np.asarray(pick(order, best_rows(query, queries), -1))
