"""Ranking metrics of extreme classification, as the papers define them.

`precision_at`, `recall_at` and `ndcg_at` return one fraction for each query, because a paired t-test needs a value for
each query. `query_scores` chooses a metric by its name.

Common arguments: `predictions` holds distinct label positions, best first, and -1 after the last. `truth` is a sparse
query x label matrix; every non-zero is a true label. `hit` marks the true labels among the predictions.
"""

from __future__ import annotations

import math
from typing import NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array, csr_matrix

from recollect.trainer.settings import Metric

# Label segments by number of training instances: (more than, at most).
SEGMENTS: dict[str, tuple[float, float]] = {
    "head": (1000, math.inf),
    "torso": (100, 1000),
    "tail": (10, 100),
    "extreme tail": (0, 10),
    "unseen": (-math.inf, 0),
}
# The metrics of a ranking, in the order in which tables print them.
METRICS: tuple[Metric, ...] = get_args(Metric)
# A and B of the propensity model for most datasets.
PROPENSITY = 0.55, 1.5


def hits(predictions: Int[np.ndarray, "query top_k"], truth: csr_matrix | csr_array) -> Bool[np.ndarray, "query top_k"]:
    """Mark the predictions that are true labels. The placeholder -1 is never marked.

    Raises:
        ValueError: If `predictions` does not have one row for each query, or contains a label that `truth` lacks.
    """
    truth = _to_sets(truth)
    n_queries, n_labels = truth.shape
    if predictions.ndim != 2 or len(predictions) != n_queries:
        raise ValueError(f"predictions: expected shape ({n_queries}, top_k), found {predictions.shape}")
    if np.any((predictions < -1) | (predictions >= n_labels)):
        raise ValueError(
            f"predictions: expected label positions from 0 to {n_labels - 1}, or -1 for none, "
            f"found {predictions.min()} to {predictions.max()}"
        )
    # Encode each (query, label) pair as an integer; the truth is then sorted. The first integer of each query stands
    # for the prediction -1.
    first = np.arange(n_queries, dtype=np.int64) * (n_labels + 1)
    true = np.repeat(first, np.diff(truth.indptr)) + truth.indices + 1
    true = np.append(true, np.iinfo(np.int64).max)
    found = np.empty(predictions.shape, dtype=bool)
    # One rank at a time: all ranks of a million queries would take gigabytes.
    for rank in range(predictions.shape[1]):
        pairs = first + predictions[:, rank] + 1
        found[:, rank] = true[np.searchsorted(true, pairs)] == pairs
    return found


def precision_at(hit: Bool[np.ndarray, "query top_k"], k: int) -> Float[np.ndarray, " query"]:
    """P@k: number of true labels in the top k, divided by k (also if there are fewer predictions or true labels)."""
    return np.asarray(np.count_nonzero(hit[:, :k], axis=1) / k)


def recall_at(
    hit: Bool[np.ndarray, "query top_k"], sizes: Int[np.ndarray, " query"], k: int
) -> Float[np.ndarray, " query"]:
    """R@k: number of true labels in the top k, divided by the number of true labels.

    Args:
        sizes: Number of true labels of each query. A query without true labels scores 0.
    """
    return np.asarray(np.count_nonzero(hit[:, :k], axis=1) / np.maximum(sizes, 1))


def ndcg_at(
    hit: Bool[np.ndarray, "query top_k"], sizes: Int[np.ndarray, " query"], k: int
) -> Float[np.ndarray, " query"]:
    """nDCG@k: discounted gain of the top k, divided by the gain of an ideal ranking of min(k, |y|) true labels.

    Args:
        sizes: Number of true labels of each query. A query without true labels scores 0.
    """
    discounts = 1 / np.log2(np.arange(2, k + 2))
    top = hit[:, :k]
    gains = np.dot(top, discounts[: top.shape[1]])
    # Without true labels the gain is 0, so any positive ideal gives 0.
    ideals = np.cumsum(discounts)[np.clip(sizes, 1, k) - 1]
    return np.asarray(gains / ideals)


def propensity_weights(
    label_counts: Int[np.ndarray, " label"], instances: int, a: float, b: float
) -> Float[np.ndarray, " label"]:
    """The inverse propensity of each label: rare labels weigh more.

    The propensity is the probability that a true label is annotated.
    w_l = 1 + C (n_l + B)^-A with C = (ln N - 1)(B + 1)^A (Jain et al., KDD 2016). The model fits large datasets: with
    fewer than 3 instances, C is negative and rare labels weigh less.

    Args:
        label_counts: Number of training instances n_l of each label, 0 or more.
        a: A; 0.55 for most datasets, 0.6 for Amazon datasets, 0.5 for Wikipedia except WikiSeeAlso.
        b: B; 1.5 for most datasets, 2.6 for Amazon datasets, 0.4 for Wikipedia except WikiSeeAlso.

    Raises:
        ValueError: If `instances` or `b` is not positive.
    """
    if instances < 1:
        raise ValueError(f"propensity: expected at least 1 training instance, found {instances}")
    if b <= 0:
        raise ValueError(f"propensity: expected a positive B, found {b}")
    c = (math.log(instances) - 1) * (b + 1) ** a
    return np.asarray(1 + c * (label_counts + b) ** -a)


def propensity_gains(
    predictions: Int[np.ndarray, "query top_k"],
    hit: Bool[np.ndarray, "query top_k"],
    truth: csr_matrix | csr_array,
    weights: Float[np.ndarray, " label"],
    k: int,
) -> tuple[Float[np.ndarray, " query"], Float[np.ndarray, " query"]]:
    """For each query, the weight of the true labels in the top k, and in an ideal top k.

    PSP@k is the ratio of the sums over all queries, not a mean of ratios (Jain et al., KDD 2016).
    """
    truth = _to_sets(truth)
    queries, sizes = truth.shape[0], np.diff(truth.indptr)
    found = np.where(hit[:, :k], weights[predictions[:, :k]], 0.0).sum(axis=1)
    true_weights = weights[truth.indices]
    # Sort the true labels of each query by weight, heaviest first: the offset within the query is the ideal rank.
    query = np.repeat(np.arange(queries), sizes)
    heaviest_first = true_weights[np.lexsort((-true_weights, query))]
    ranks = np.arange(truth.nnz) - np.repeat(truth.indptr[:-1], sizes)
    ideal = np.bincount(query[ranks < k], heaviest_first[ranks < k], minlength=queries)
    return found, ideal.astype(np.float64)  # without true labels, bincount returns integers


def label_f1(
    true_positives: Float[np.ndarray, "*any"], predicted_and_true: Float[np.ndarray, "*any"]
) -> Float[np.ndarray, "*any"]:
    """F1 of a label, as a fraction: 2 tp / (predicted + true); 0 for a label that is neither predicted nor true."""
    return np.asarray(2 * true_positives / np.maximum(predicted_and_true, 1))


def by_label(
    predictions: Int[np.ndarray, "query top_k"], truth: csr_matrix | csr_array, k: int
) -> tuple[Float[np.ndarray, " label"], Bool[np.ndarray, " label"]]:
    """The F1@k of each label that is true of a query, and whether a query that has the label has it in its top k.

    The means are macro F1@k and coverage@k (Schultheis et al., NeurIPS 2023), over these labels: all others score 0.
    """
    truth = _to_sets(truth)
    top, labels = predictions[:, :k], truth.shape[1]
    found = np.bincount(top[hits(top, truth)], minlength=labels)
    true = np.bincount(truth.indices, minlength=labels)
    predicted = np.bincount(top[top >= 0], minlength=labels)
    return label_f1(found, predicted + true)[true > 0], found[true > 0] > 0


def query_scores(
    metric: str,
    predictions: Int[np.ndarray, "query top_k"],
    truth: csr_matrix | csr_array,
    weights: Float[np.ndarray, " label"],
) -> Float[np.ndarray, " query"]:
    """Score each query, so that the mean of the scores is a metric in percent.

    Args:
        metric: One of `METRICS`, or one of them at another cut-off, such as nDCG@10.

    Raises:
        ValueError: In the cases of `hits`.
    """
    name, _, depth = metric.partition("@")
    k, truth = int(depth), _to_sets(truth)
    hit, sizes = hits(predictions[:, :k], truth), np.diff(truth.indptr)
    match name:
        case "P":
            scores = precision_at(hit, k)
        case "nDCG":
            scores = ndcg_at(hit, sizes, k)
        case "R":
            scores = recall_at(hit, sizes, k)
        case _:
            gained, ideal = propensity_gains(predictions, hit, truth, weights, k)
            scores = gained / (ideal.mean() or 1.0)  # without true labels, all gains are 0
    return 100 * scores


class PairedGain(NamedTuple):
    """The gain from one set of scores to another one, of the same queries.

    Attributes:
        error: Standard error of the mean; infinite for a single query.
    """

    mean: float
    error: float

    @classmethod
    def of(cls, before: Float[np.ndarray, " query"], after: Float[np.ndarray, " query"]) -> PairedGain:
        gains = after - before
        error = float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else math.inf
        return cls(float(gains.mean()), error)

    def exceeds(self, errors: float) -> bool:
        """Whether the gain is more than this number of standard errors, so that it is not noise."""
        return self.mean > max(0.0, errors * self.error)


def _to_sets(truth: csr_matrix | csr_array) -> csr_array:
    """Copy the truth with sorted rows, and remove repeated labels and stored zeros."""
    # Bool, because the stored numbers of a repeated label would be added and could sum to 0.
    sets = csr_array(truth, dtype=bool, copy=True)
    sets.sum_duplicates()
    sets.eliminate_zeros()
    return sets
