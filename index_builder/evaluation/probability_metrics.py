"""Metrics of probabilities: calibration error, Brier score, and F1 of the assigned labels.

Common arguments: `probabilities` holds the probability of each predicted label, and `hit` marks the true labels among
the predictions, both in order of falling probability. A missing prediction has the probability 0 and no hit. `sizes`
holds the number of true labels of each query. All results are fractions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# Number of equal bins of the calibration error (Guo et al., ICML 2017).
_BINS = 15


@dataclass(frozen=True)
class Reliability:
    """The predictions in each bin of probabilities; bins without predictions are left out.

    Attributes:
        probability: Mean probability of the predictions of each bin.
        true_share: Share of the predictions of each bin that are true labels.
        predictions: Number of predictions of each bin.
    """

    probability: Float[np.ndarray, " bin"]
    true_share: Float[np.ndarray, " bin"]
    predictions: Int[np.ndarray, " bin"]

    @property
    def expected_error(self) -> float:
        """ECE: mean distance between probability and share of true labels, weighted by the predictions of each bin."""
        if not len(self.predictions):
            return 0.0
        return float(np.average(np.abs(self.probability - self.true_share), weights=self.predictions))


def reliability(
    probabilities: Float[np.ndarray, "query label"], hit: Bool[np.ndarray, "query label"], k: int
) -> Reliability:
    """Group the first k predictions of each query by their probability, in 15 bins of equal width."""
    predicted = probabilities[:, :k] > 0
    probability, true = probabilities[:, :k][predicted], hit[:, :k][predicted]
    bins = np.minimum((probability * _BINS).astype(np.int64), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    used = counts > 0
    sums, hits = np.bincount(bins, probability, _BINS), np.bincount(bins, true, _BINS)
    return Reliability(sums[used] / counts[used], hits[used] / counts[used], counts[used])


def brier(
    probabilities: Float[np.ndarray, "query label"],
    hit: Bool[np.ndarray, "query label"],
    sizes: Int[np.ndarray, " query"],
) -> float:
    """Brier score (Brier, 1950): sum over all labels of the squared error of the probability, averaged over queries.

    A true label that is not predicted has the probability 0, so it counts 1.
    """
    errors = np.square(probabilities - hit).sum(axis=1)
    return float((errors + sizes - hit.sum(axis=1)).mean())


def example_f1(
    hit: Bool[np.ndarray, "query label"], sizes: Int[np.ndarray, " query"], assigned: Int[np.ndarray, " query"] | int
) -> float:
    """Example-based F1: 2 |S ∩ Y| / (|S| + |Y|), averaged over queries; 0 if both sets are empty.

    Args:
        hit: Marks the true labels among the predictions.
        sizes: Number of true labels of each query.
        assigned: Number of first predictions that are assigned to each query.
    """
    counts = np.broadcast_to(np.asarray(assigned), sizes.shape)
    found = np.where(np.arange(hit.shape[1]) < counts[:, None], hit, False).sum(axis=1)
    return float((2 * found / np.maximum(counts + sizes, 1)).mean())


def best_fixed_size(hit: Bool[np.ndarray, "query label"], sizes: Int[np.ndarray, " query"]) -> tuple[int, float]:
    """The number k of labels with the highest example-based F1, if every query gets its first k, and this F1."""
    found = np.cumsum(hit, axis=1)
    scores = (2 * found / (np.arange(1, hit.shape[1] + 1) + sizes[:, None])).mean(axis=0)
    best = int(scores.argmax())
    return best + 1, float(scores[best])
