"""Gains of the ranker over the votes on held-out texts: all metrics, and by the frequency of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.index_builder.evaluation.predictions import best_rows, pick
from recollect.trainer.metrics import SEGMENTS, hits, propensity_weights, query_scores

METRICS = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100")
_SEGMENT_DEPTH = 5
# The queries are divided into blocks; the gains of the blocks give the standard error of the gain.
_BLOCKS = 10
_STANDARD_ERRORS = 2


def is_certain(gain: float, standard_error: float) -> bool:
    """Whether a gain is at least two standard errors, so that it is not noise."""
    return gain > max(0.0, _STANDARD_ERRORS * standard_error)


@dataclass(frozen=True)
class Gain:
    """A metric in percent, of the votes and of the ranker.

    Attributes:
        name: The metric, or the segment of labels whose recall at 5 is measured.
        votes: The metric of the votes.
        ranker: The metric of the ranker.
        error: Standard error of the difference.
    """

    name: str
    votes: float
    ranker: float
    error: float

    @property
    def certain(self) -> bool:
        """Whether the ranker gains at least two standard errors."""
        return is_certain(self.ranker - self.votes, self.error)


class Judge:
    """Measures rankings of held-out texts.

    Args:
        truth: The true labels, with the axes (query, label).
        counts: Number of training instances of each label.
        instances: Number of instances.
        propensity: The parameters A and B of the propensity model.
    """

    def __init__(
        self,
        truth: sparse.csr_matrix,
        counts: Int[np.ndarray, " label"],
        instances: int,
        propensity: tuple[float, float],
    ) -> None:
        self._truth, self._counts = truth, counts
        self._weights = propensity_weights(counts, instances, *propensity)

    def gain(self, name: str, votes: Int[np.ndarray, "query 100"], ranker: Int[np.ndarray, "query 100"]) -> Gain:
        """Compare two rankings by one metric, such as nDCG@5, or by the recall at 5 of a segment of `SEGMENTS`."""
        block = np.arange(len(votes)) % _BLOCKS
        differences = [
            self._measure(name, ranker, block == number) - self._measure(name, votes, block == number)
            for number in np.unique(block)
        ]
        everything = np.ones(len(votes), dtype=bool)
        error = float(np.std(differences, ddof=1) / np.sqrt(len(differences))) if len(differences) > 1 else np.inf
        return Gain(name, self._measure(name, votes, everything), self._measure(name, ranker, everything), error)

    def segments(self) -> list[str]:
        """The segments of labels that have true labels."""
        counts = self._counts[self._truth.indices]
        return [name for name, (more, most) in SEGMENTS.items() if ((counts > more) & (counts <= most)).any()]

    def _measure(self, name: str, labels: Int[np.ndarray, "query 100"], queries: np.ndarray) -> float:
        labels, truth = labels[queries], self._truth[queries]
        if name in SEGMENTS:
            return 100 * self._segment_recall(name, labels, truth)
        return float(query_scores(name, labels, truth, self._weights).mean())

    def _segment_recall(self, name: str, labels: Int[np.ndarray, "query 100"], truth: sparse.csr_matrix) -> float:
        """The share of the true labels of a segment that are among the best 5."""
        more, most = SEGMENTS[name]
        inside = (self._counts > more) & (self._counts <= most)
        best = labels[:, :_SEGMENT_DEPTH]
        found = hits(best, truth) & inside[best]
        return float(found.sum() / max(1, inside[truth.indices].sum()))


def format_gains(gains: list[Gain], segments: list[Gain]) -> list[str]:
    """A table of the gains: metrics first, then the recall at 5 by frequency of labels."""
    head = f"{'':24}  {'votes':>7}  {'ranker':>7}  {'gain':>7}  {'error':>6}"
    rows = [(gain.name, gain) for gain in gains]
    rows += [(f"R@{_SEGMENT_DEPTH} of {gain.name} labels", gain) for gain in segments]
    return [head] + [
        f"{name:24}  {each.votes:7.2f}  {each.ranker:7.2f}  {each.ranker - each.votes:+7.2f}  {each.error:6.2f}"
        for name, each in rows
    ]


def gain_as_json(gain: Gain) -> dict[str, Any]:
    return {"name": gain.name, "votes": gain.votes, "ranker": gain.ranker, "error": gain.error}


def best_candidates(
    query: Int[np.ndarray, " candidate"], measure: Float[np.ndarray, " candidate"], queries: int
) -> Int[np.ndarray, "query 100"]:
    """The rows of the best 100 candidates of each query, by falling measure; -1 pads short lists."""
    order = np.lexsort((-measure, query))
    return np.asarray(pick(order, best_rows(query, queries), -1))
