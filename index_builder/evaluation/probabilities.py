"""Probabilities on a test split: calibration error, Brier score, F1 of the assigned labels, and coverage.

Common arguments: `probabilities` holds the probability of each predicted label, and `hit` marks the true labels among
the predictions, both in order of falling probability. A missing prediction has the probability 0 and no hit. `sizes`
holds the number of true labels of each query. All results are fractions. `brier` and `example_f1` return one for each
query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core.bundle.manifest import Coverage
from recollect.core.reranker.assign import best_set_sizes

DEPTHS = (1, 5)
# Number of equal bins of the calibration error (Guo et al., ICML 2017).
BINS = 15


@dataclass(frozen=True)
class Reliability:
    """The predictions in each bin of probabilities; bins without predictions are left out."""

    probability: Float[np.ndarray, " bin"]  # mean of the predictions
    true_share: Float[np.ndarray, " bin"]  # share of the predictions that are true labels
    predictions: Int[np.ndarray, " bin"]

    @property
    def expected_error(self) -> float:
        """ECE: mean distance between probability and share of true labels, weighted by the predictions of each bin."""
        if not len(self.predictions):
            return 0.0
        return float(np.average(np.abs(self.probability - self.true_share), weights=self.predictions))


def bin_of(probability: Float[np.ndarray, " prediction"]) -> Int[np.ndarray, " prediction"]:
    return np.asarray(np.minimum((probability * BINS).astype(np.int64), BINS - 1))


def reliability(
    probabilities: Float[np.ndarray, "query label"], hit: Bool[np.ndarray, "query label"], k: int
) -> Reliability:
    """Group the first k predictions of each query by their probability, in 15 bins of equal width."""
    predicted = probabilities[:, :k] > 0
    probability, true = probabilities[:, :k][predicted], hit[:, :k][predicted]
    bins = bin_of(probability)
    counts = np.bincount(bins, minlength=BINS)
    used = counts > 0
    sums, hits = np.bincount(bins, probability, BINS), np.bincount(bins, true, BINS)
    return Reliability(sums[used] / counts[used], hits[used] / counts[used], counts[used])


def brier(
    probabilities: Float[np.ndarray, "query label"],
    hit: Bool[np.ndarray, "query label"],
    sizes: Int[np.ndarray, " query"],
) -> Float[np.ndarray, " query"]:
    """Brier score of each query (Brier, 1950): sum over all labels of the squared error of the probability.

    A true label that is not predicted has the probability 0, so it counts 1.
    """
    errors = np.square(probabilities - hit).sum(axis=1)
    return np.asarray(errors + sizes - hit.sum(axis=1))


def example_f1(
    hit: Bool[np.ndarray, "query label"], sizes: Int[np.ndarray, " query"], assigned: Int[np.ndarray, " query"] | int
) -> Float[np.ndarray, " query"]:
    """Example-based F1 of each query: 2 |S ∩ Y| / (|S| + |Y|); 0 if both sets are empty.

    The number `assigned` of first predictions is S.
    """
    counts = np.broadcast_to(np.asarray(assigned), sizes.shape)
    true_assigned = np.where(np.arange(hit.shape[1]) < counts[:, None], hit, False).sum(axis=1)
    return np.asarray(2 * true_assigned / np.maximum(counts + sizes, 1))


def best_fixed_size(hit: Bool[np.ndarray, "query label"], sizes: Int[np.ndarray, " query"]) -> int:
    """The number k of labels with the highest mean example-based F1, if every query gets its first k."""
    true = np.cumsum(hit, axis=1)
    scores = (2 * true / (np.arange(1, hit.shape[1] + 1) + sizes[:, None])).mean(axis=0)
    return int(scores.argmax()) + 1


@dataclass(frozen=True)
class JudgedProbabilities:
    """Predicted probabilities, and whether the labels are true."""

    probabilities: Float[np.ndarray, "query label"]
    hit: Bool[np.ndarray, "query label"]
    sizes: Int[np.ndarray, " query"]

    @cached_property
    def best_k(self) -> int:
        """The number of labels with the highest F1, if every query gets this number."""
        return best_fixed_size(self.hit, self.sizes)

    @cached_property
    def scores(self) -> dict[str, Float[np.ndarray, " query"]]:
        """The metrics that are means over the queries, for each query."""
        return {
            "Brier": brier(self.probabilities, self.hit, self.sizes),
            "F1 assigned": 100 * example_f1(self.hit, self.sizes, best_set_sizes(self.probabilities)),
            "F1 best k": 100 * example_f1(self.hit, self.sizes, self.best_k),
        }

    def coverage(self, statements: Sequence[Coverage]) -> list[dict[str, float]]:
        """Check coverage statements: the share of the true labels `found` at or above each probability.

        `labels` is the mean number of labels of a query at or above it.
        """
        true_labels = max(1, int(self.sizes.sum()))
        return [
            {
                "share": statement.share,
                "probability": statement.probability,
                "found": float(np.count_nonzero(reached & self.hit) / true_labels),
                "labels": float(reached.sum(axis=1).mean()),
            }
            for statement in statements
            for reached in [(self.probabilities >= statement.probability) & (self.probabilities > 0)]
        ]
