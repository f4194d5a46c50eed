"""How good predictions are: the field's ranking metrics, exactly as its papers define them.

Per-query functions return fractions, one a query, so that two models can be compared by a paired t-test;
`report` gives means in percent.

Throughout, `predictions` holds distinct label positions in falling score, -1 where there is none; `truth` is
a sparse query x label matrix in which every non-zero is a true label; `hit` says which predictions are true.
"""

import math

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array, csr_matrix

# Label segments by training points: (more than, at most).
SEGMENTS: dict[str, tuple[float, float]] = {
    "head": (1000, math.inf),
    "torso": (100, 1000),
    "tail": (10, 100),
    "extreme tail": (-math.inf, 10),
}


def hits(predictions: Int[np.ndarray, "query top_k"], truth: csr_matrix | csr_array) -> Bool[np.ndarray, "query top_k"]:
    """Tell which predictions are true; -1 never is.

    Raises:
        ValueError: If `predictions` has not one row a query, or names a label that `truth` lacks.
    """
    truth = _label_sets(truth)
    n_queries, n_labels = truth.shape
    if predictions.ndim != 2 or len(predictions) != n_queries:
        raise ValueError(f"predictions: expected shape ({n_queries}, top_k), found {predictions.shape}")
    if np.any((predictions < -1) | (predictions >= n_labels)):
        raise ValueError(
            f"predictions: expected label positions from 0 to {n_labels - 1}, or -1 for none, "
            f"found {predictions.min()} to {predictions.max()}"
        )
    # One integer a (query, label) pair, rising along the truth; a query's first is left for its -1.
    first = np.arange(n_queries, dtype=np.int64) * (n_labels + 1)
    true = np.repeat(first, np.diff(truth.indptr)) + truth.indices + 1
    true = np.append(true, np.iinfo(np.int64).max)
    found = np.empty(predictions.shape, dtype=bool)
    # Rank by rank: a million queries x 100 integers at once would take gigabytes.
    for rank in range(predictions.shape[1]):
        pairs = first + predictions[:, rank] + 1
        found[:, rank] = true[np.searchsorted(true, pairs)] == pairs
    return found


def precision_at(hit: Bool[np.ndarray, "query top_k"], k: int) -> Float[np.ndarray, "query"]:
    """P@k: true predictions in the top k, over k even where there are fewer predictions or true labels."""
    return np.asarray(np.count_nonzero(hit[:, :k], axis=1) / k)


def recall_at(
    hit: Bool[np.ndarray, "query top_k"], sizes: Int[np.ndarray, "query"], k: int
) -> Float[np.ndarray, "query"]:
    """R@k: true predictions in the top k, over the query's true labels.

    Args:
        hit: Which predictions are true.
        sizes: True labels of each query; a query with none scores 0.
        k: Cut-off, at least 1.
    """
    return np.asarray(np.count_nonzero(hit[:, :k], axis=1) / np.maximum(sizes, 1))


def ndcg_at(
    hit: Bool[np.ndarray, "query top_k"], sizes: Int[np.ndarray, "query"], k: int
) -> Float[np.ndarray, "query"]:
    """nDCG@k: discounted gain of the top k, over that of an ideal ranking of min(k, |y|) true labels.

    Args:
        hit: Which predictions are true.
        sizes: True labels of each query; a query with none scores 0.
        k: Cut-off, at least 1.
    """
    discounts = 1 / np.log2(np.arange(2, k + 2))
    top = hit[:, :k]
    gains = np.dot(top, discounts[: top.shape[1]])
    # Without a true label any ideal will do: the gain is 0.
    ideals = np.cumsum(discounts)[np.clip(sizes, 1, k) - 1]
    return np.asarray(gains / ideals)


def propensity_weights(
    label_counts: Int[np.ndarray, "label"], instances: int, a: float, b: float
) -> Float[np.ndarray, "label"]:
    """Weigh each label by the inverse of its propensity to be noted where it applies: rare labels weigh more.

    w_l = 1 + C (n_l + B)^-A with C = (ln N - 1)(B + 1)^A (Jain et al., KDD 2016). With fewer than 3 instances
    C is negative and rare labels weigh less: the model was fitted on large data sets only.

    Args:
        label_counts: Training points n_l of each label, 0 or more.
        instances: Training points N.
        a: A, .55 unless the data set has its own (.6 for Amazon, .5 for Wikipedia).
        b: B, 1.5 unless the data set has its own (2.6 for Amazon, .4 for Wikipedia).

    Raises:
        ValueError: If `instances` or `b` is not positive.
    """
    if instances < 1:
        raise ValueError(f"propensity: expected at least 1 training instance, found {instances}")
    if b <= 0:
        raise ValueError(f"propensity: expected a positive B, found {b}")
    c = (math.log(instances) - 1) * (b + 1) ** a
    return np.asarray(1 + c * (label_counts + b) ** -a)


def psp_at(
    predictions: Int[np.ndarray, "query top_k"],
    hit: Bool[np.ndarray, "query top_k"],
    truth: csr_matrix | csr_array,
    weights: Float[np.ndarray, "label"],
    k: int,
) -> float:
    """PSP@k: weight of the true labels in all top k, over the weight that ideal top k would hold.

    A ratio of sums over the queries, not a mean of ratios (Jain et al., KDD 2016); 0 when nothing is true.

    Args:
        predictions: Label positions.
        hit: Which of them are true.
        truth: True labels of each query.
        weights: Propensity weight of each label.
        k: Cut-off, at least 1.
    """
    truth = _label_sets(truth)
    sizes = np.diff(truth.indptr)
    gained = weights[predictions[:, :k][hit[:, :k]]].sum()
    true_weights = weights[truth.indices]
    # Each query's true labels stay in its own stretch, heaviest first: a label's place there is its rank.
    heaviest_first = np.lexsort((-true_weights, np.repeat(np.arange(len(sizes)), sizes)))
    ranks = np.arange(truth.nnz) - np.repeat(truth.indptr[:-1], sizes)
    ideal = true_weights[heaviest_first][ranks < k].sum()
    return float(gained / ideal) if truth.nnz else 0.0


def macro_f1_at(
    predictions: Int[np.ndarray, "query top_k"],
    truth: csr_matrix | csr_array,
    label_counts: Int[np.ndarray, "label"],
    k: int = 5,
) -> dict[str, float | None]:
    """F1@k of each label over all top k, averaged over the labels of each segment.

    A label that is neither true nor predicted counts 0.

    Returns:
        A fraction for each of `SEGMENTS`, None for one without labels.

    Raises:
        ValueError: As `hits`, or if `label_counts` does not count each label of `truth`.
    """
    truth = _label_sets(truth)
    n_labels = truth.shape[1]
    if label_counts.shape != (n_labels,):
        raise ValueError(f"label_counts: expected shape ({n_labels},), found {label_counts.shape}")
    top = predictions[:, :k]
    true_positives = np.bincount(top[hits(top, truth)], minlength=n_labels)
    predicted = np.bincount(top[top >= 0], minlength=n_labels)
    actual = np.bincount(truth.indices, minlength=n_labels)
    # 2 TP / (2 TP + FP + FN), since predicted = TP + FP and actual = TP + FN.
    f1 = 2 * true_positives / np.maximum(predicted + actual, 1)
    means: dict[str, float | None] = {}
    for segment, (more_than, at_most) in SEGMENTS.items():
        members = (label_counts > more_than) & (label_counts <= at_most)
        means[segment] = float(f1[members].mean()) if members.any() else None
    return means


def report(
    predictions: Int[np.ndarray, "query top_k"],
    truth: csr_matrix | csr_array,
    label_counts: Int[np.ndarray, "label"],
    instances: int,
    propensity: tuple[float, float] = (0.55, 1.5),
) -> dict[str, float | None]:
    """Give every metric in percent, in the order in which tables print them.

    Args:
        predictions: Label positions; R@100 needs 100 a query, fewer count as misses.
        truth: True labels of each query.
        label_counts: Training points of each label.
        instances: Training points in all.
        propensity: A and B of `propensity_weights`.

    Returns:
        A percentage for each metric; None for the F1 of a segment without labels.

    Raises:
        ValueError: If there is no query, or the arguments' shapes disagree.
    """
    truth = _label_sets(truth)
    if truth.shape[0] == 0:
        raise ValueError("truth: expected at least 1 query, found none; nothing can be measured")
    hit = hits(predictions, truth)
    f1 = macro_f1_at(predictions, truth, label_counts, k=5)
    sizes = np.diff(truth.indptr)
    weights = propensity_weights(label_counts, instances, *propensity)
    fractions: dict[str, float | None] = {
        **{f"P@{k}": float(precision_at(hit, k).mean()) for k in (1, 3, 5)},
        **{f"nDCG@{k}": float(ndcg_at(hit, sizes, k).mean()) for k in (3, 5)},
        **{f"PSP@{k}": psp_at(predictions, hit, truth, weights, k) for k in (1, 3, 5)},
        **{f"R@{k}": float(recall_at(hit, sizes, k).mean()) for k in (10, 100)},
        **{f"F1@5 {segment}": mean for segment, mean in f1.items()},
    }
    return {name: None if value is None else 100 * value for name, value in fractions.items()}


def _label_sets(truth: csr_matrix | csr_array) -> csr_array:
    """Copy the truth as sorted sets: no label twice in a row, no stored zero."""
    # As bool, a repeated label stays one true label; its numbers would add up, or cancel.
    sets = csr_array(truth, dtype=bool, copy=True)
    sets.sum_duplicates()
    sets.eliminate_zeros()
    return sets
