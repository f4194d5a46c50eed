"""The metrics of `recollect evaluate` as functions of sums over the queries, so that they can be resampled.

The values of all queries equal those of `trainer.metrics.report` and of `JudgedProbabilities.metrics`.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from index_builder.evaluation.bootstrap import Statistics, means, ratios
from index_builder.evaluation.probability_metrics import BINS, bin_of
from index_builder.evaluation.probability_report import DEPTHS, JudgedProbabilities
from trainer.metrics import (
    SEGMENTS,
    hits,
    ndcg_at,
    precision_at,
    propensity_gains,
    propensity_weights,
    recall_at,
)

# Depth of the macro F1.
_DEPTH = 5


def ranking_statistics(
    predictions: Int[np.ndarray, "query top_k"],
    truth: sparse.csr_matrix,
    label_counts: Int[np.ndarray, " label"],
    instances: int,
    propensity: tuple[float, float],
) -> list[Statistics]:
    """The metrics of `trainer.metrics.report`, in percent, with the same arguments."""
    hit, sizes = hits(predictions, truth), np.diff(truth.indptr)
    weights = propensity_weights(label_counts, instances, *propensity)
    by_query = {
        **{f"P@{k}": precision_at(hit, k) for k in (1, 3, 5)},
        **{f"nDCG@{k}": ndcg_at(hit, sizes, k) for k in (3, 5)},
        **{f"R@{k}": recall_at(hit, sizes, k) for k in (10, 100)},
    }
    gains = {f"PSP@{k}": propensity_gains(predictions, hit, truth, weights, k) for k in (1, 3, 5)}
    return [
        means({name: 100 * scores for name, scores in by_query.items()}),
        ratios({name: (100 * gained, ideal) for name, (gained, ideal) in gains.items()}),
        _macro_f1(predictions[:, :_DEPTH], hit[:, :_DEPTH], truth, label_counts),
    ]


def _macro_f1(
    predictions: Int[np.ndarray, "query top_k"],
    hit: Bool[np.ndarray, "query top_k"],
    truth: sparse.csr_matrix,
    label_counts: Int[np.ndarray, " label"],
) -> Statistics:
    """The F1 of each label, averaged over the labels of each frequency segment that has labels."""
    members = {name: (label_counts > more) & (label_counts <= most) for name, (more, most) in SEGMENTS.items()}
    members = {name: inside for name, inside in members.items() if inside.any()}
    # A label that is neither true nor predicted has the F1 0 in every resample.
    present = np.union1d(truth.indices, predictions[predictions >= 0])
    shares = np.stack([inside[present] / inside.sum() for inside in members.values()], axis=1)

    def counted(pairs: Bool[np.ndarray, "query top_k"]) -> sparse.csr_array:
        indptr = np.concatenate([[0], np.cumsum(pairs.sum(axis=1))])
        columns = np.searchsorted(present, predictions[pairs])
        return sparse.csr_array((np.ones(len(columns)), columns, indptr), shape=(len(pairs), len(present)))

    true = sparse.csr_array(
        (np.ones(truth.nnz), np.searchsorted(present, truth.indices), truth.indptr),
        shape=(truth.shape[0], len(present)),
    )

    def finish(sums: Float[np.ndarray, "resample term"]) -> Float[np.ndarray, "resample metric"]:
        true_positives, predicted_and_true = np.split(sums, 2, axis=1)
        f1: Float[np.ndarray, "resample label"] = 2 * true_positives / np.maximum(predicted_and_true, 1)
        return np.asarray(100 * f1 @ shares)

    terms = sparse.hstack([counted(hit), counted(predictions >= 0) + true], format="csr")
    return Statistics([f"F1@5 {name}" for name in members], terms, finish)


def probability_statistics(judged: JudgedProbabilities) -> list[Statistics]:
    """The metrics of `JudgedProbabilities.metrics`, with the same units. The best fixed k stays that of all queries."""
    return [*(_calibration_error(judged, k) for k in DEPTHS), means(judged.scores)]


def _calibration_error(judged: JudgedProbabilities, k: int) -> Statistics:
    """ECE: the terms are, for each bin, the predictions of a query and the excess of their probabilities over hits."""
    probability, hit = judged.probabilities[:, :k], judged.hit[:, :k]
    query, rank = np.nonzero(probability > 0)
    place = query * BINS + bin_of(probability[query, rank])
    parts = [
        np.bincount(place, values, minlength=len(probability) * BINS).reshape(-1, BINS)
        for values in (np.ones(len(place)), probability[query, rank] - hit[query, rank])
    ]

    def finish(sums: Float[np.ndarray, "resample term"]) -> Float[np.ndarray, "resample metric"]:
        predictions, excess = np.split(sums, 2, axis=1)
        distance, count = (each.sum(axis=1, keepdims=True) for each in (np.abs(excess), predictions))
        return np.asarray(distance / np.maximum(count, 1))

    return Statistics([f"ECE@{k}"], np.concatenate(parts, axis=1), finish, most=1.0)
