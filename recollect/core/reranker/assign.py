"""Assignment: the set of labels with the highest expected F1 for a query.

The set consists of the k most probable labels (Lewis, SIGIR 1995). The expected F1 of each k is exact if the labels
are true independently of each other. It takes O(n^2) operations for n labels, with a Poisson-binomial distribution of
the true labels inside the set and a recurrence for the true labels outside it (Ye et al., ICML 2012).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from recollect.core.options import MOST_ASSIGNED


def assigned_counts(
    probabilities: Float[np.ndarray, " row"], rows: Int[np.ndarray, " offset"], limit: int
) -> Int[np.ndarray, " query"]:
    """The number of labels to assign to each query.

    Args:
        probabilities: Probabilities of the labels of all queries; those of a query are in falling order.
        rows: Query i has the probabilities `rows[i]` to `rows[i + 1]`.
        limit: Maximum number of labels of a query.
    """
    counts = np.minimum(np.diff(rows), MOST_ASSIGNED)
    filled = np.arange(counts.max(initial=0)) < counts[:, None]
    table = np.zeros(filled.shape)
    table[filled] = probabilities[(rows[:-1, None] + np.arange(filled.shape[1]))[filled]]
    return np.asarray(np.minimum(best_set_sizes(table, limit), counts))


def best_set_sizes(
    probabilities: Float[np.ndarray, "query label"], limit: int = MOST_ASSIGNED
) -> Int[np.ndarray, " query"]:
    """The number of most probable labels with the highest expected F1; the smallest one if several are best.

    F1 = 2 |S ∩ Y| / (|S| + |Y|) for the set S and the true labels Y. An empty set has the F1 0, as in `evaluate`, so
    every query with a label gets at least one.

    Args:
        probabilities: Probabilities of the labels of each query, highest first; 0 where a query has fewer labels.
        limit: Maximum size of a set.
    """
    if probabilities.shape[1] == 0:
        return np.zeros(len(probabilities), dtype=np.int64)
    return np.asarray(1 + expected_f1(probabilities)[:, :limit].argmax(axis=1))


def expected_f1(probabilities: Float[np.ndarray, "query label"]) -> Float[np.ndarray, "query label"]:
    """The expected F1 of the first label, of the first two labels, and so on.

    The sum over the number j of true labels inside the set, and m outside it:
    E[F1 of k] = sum_j P(j of k) 2j E_m[1 / (k + j + m)].
    """
    queries, labels = probabilities.shape
    inside = _true_label_counts(probabilities)
    expected = np.empty((queries, labels))
    twice = 2.0 * np.arange(labels + 1)
    # inverse[:, a] = E_m[1 / (a + m)] for the labels after the first k; entry 0 is never used.
    inverse = np.tile(1 / np.maximum(np.arange(2 * labels + 1), 1.0), (queries, 1))
    for k in range(labels, 0, -1):
        expected[:, k - 1] = np.einsum("qj,qj->q", inside[k][:, 1:] * twice[1 : k + 1], inverse[:, k + 1 : 2 * k + 1])
        p = probabilities[:, k - 1, None]  # from now on, label k is outside the set
        inverse = inverse[:, :-1] + p * np.diff(inverse, axis=1)
    return expected


def _true_label_counts(probabilities: Float[np.ndarray, "query label"]) -> list[np.ndarray]:
    """The Poisson-binomial distributions: for each k, the probability of 0, 1, ..., k true labels among the first k."""
    counts = [np.ones((len(probabilities), 1))]
    for p in probabilities.T[:, :, None]:
        before = counts[-1]
        after = np.empty((len(before), before.shape[1] + 1))
        after[:, :-1] = before * (1 - p)
        after[:, -1] = 0
        after[:, 1:] += before * p
        counts.append(after)
    return counts
