"""The order macro: labels with few training texts move up, for a higher macro F1 and more different labels in answers.

The measure of a label is p / (n + 1)^a, with its probability p, the number n of its training texts, and a the option
`tail_weight`. A measure that is linear in p is optimal for macro F1@k and for coverage@k (Schultheis et al., NeurIPS
2023); the weight of a label falls with its frequency. One number for all labels is fitted
(`index_builder/reranker/orders.py`), because most labels have few held-out texts.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

# The most probable labels of a query are reordered; the others follow as they are.
MOST_REORDERED = 100


def macro_order(
    query: Int[np.ndarray, " row"],
    probabilities: Float[np.ndarray, " row"],
    training_counts: Int[np.ndarray, " row"],
    tail_weight: float,
    stays: Bool[np.ndarray, " row"] | None = None,
) -> Int[np.ndarray, " row"]:
    """The rows of rankings by falling measure; rows with equal measures stay in order.

    Args:
        query: The query of each row, in rising order. The rows of a query are in falling order of their probabilities.
        stays: Whether each row may be in an answer; the other rows move behind those. None: all rows.
    """
    place = np.arange(len(query)) - np.searchsorted(query, query)
    measure = probabilities * (training_counts + 1.0) ** -tail_weight
    measure = np.where(place < MOST_REORDERED, measure, -1.0)
    if stays is not None:
        measure = np.where(stays, measure, -2.0)
    return np.lexsort((place, -measure, query))


def tail_term(training_count: int, tail_weight: float) -> float:
    """The logarithm of the divisor of a probability, as a negative term."""
    return float(-tail_weight * np.log1p(training_count))
