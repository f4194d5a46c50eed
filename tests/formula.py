"""The scores of a memory by the written formula, in float64 (RAE-XMC, Eq. 4, 5, 7 and 8)."""

from __future__ import annotations

import numpy as np


def label_scores(
    queries: np.ndarray,
    instance_keys: np.ndarray,
    label_keys: np.ndarray,
    y: np.ndarray,
    lambda_: float,
    temperature: float,
    top_b: int | None = None,
) -> np.ndarray:
    """Score each label for each query: softmax(q K^T / tau) over the b nearest keys, times [lambda Y; (1 - lambda) I].

    Only label keys are searched at lambda = 0, only instance keys at lambda = 1.
    """
    instances, labels = y.shape
    keys = np.concatenate([instance_keys, label_keys]).astype(np.float64)
    values = np.concatenate([lambda_ * y, (1 - lambda_) * np.eye(labels)])
    if lambda_ in (0, 1):
        part = slice(instances, None) if lambda_ == 0 else slice(instances)
        keys, values = keys[part], values[part]
    scores = np.empty((len(queries), labels))
    for row, query in enumerate(queries.astype(np.float64)):
        similarities = keys @ query
        nearest = np.argsort(-similarities, kind="stable")[:top_b]
        weights = np.exp((similarities[nearest] - similarities.max()) / temperature)
        scores[row] = weights / weights.sum() @ values[nearest]
    return scores
