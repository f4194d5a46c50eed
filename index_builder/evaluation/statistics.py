"""The metrics of `recollect evaluate` as functions of sums over the queries, so that they can be resampled."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from recollect.index_builder.evaluation.bootstrap import Statistics, means, ratios
from recollect.index_builder.evaluation.probability_metrics import BINS, bin_of
from recollect.index_builder.evaluation.probability_report import DEPTHS, JudgedProbabilities
from recollect.trainer.metrics import (
    SEGMENTS,
    ndcg_at,
    precision_at,
    propensity_gains,
    propensity_weights,
    recall_at,
)

# Depth of the macro F1.
_DEPTH = 5
# The metrics of every setting, in the order in which tables print them.
RANKING_METRICS = (
    *(f"{name}@{k}" for name, depths in (("P", (1, 3, 5)), ("nDCG", (3, 5)), ("PSP", (1, 3, 5))) for k in depths),
    "R@10",
    "R@100",
    *(f"F1@{_DEPTH} {segment}" for segment in SEGMENTS),
)


def ranking_statistics(
    predictions: Int[np.ndarray, "query top_k"],
    hit: Bool[np.ndarray, "query top_k"],
    truth: sparse.csr_matrix,
    label_counts: Int[np.ndarray, " label"],
    instances: int,
    propensity: tuple[float, float],
) -> list[Statistics]:
    """The metrics of `recollect.trainer.metrics.report`, in percent.

    Args:
        predictions: Label positions, best first; -1 pads short lists.
        hit: Marks the true labels among the predictions.
        truth: True labels of each query.
        label_counts: Number of training texts of each label.
        instances: Number of training texts.
        propensity: A and B of the propensity model.
    """
    sizes = np.diff(truth.indptr)
    weights = propensity_weights(label_counts, instances, *propensity)
    gains = {f"PSP@{k}": propensity_gains(predictions, hit, truth, weights, k) for k in (1, 3, 5)}
    precisions = {f"P@{k}": 100 * precision_at(hit, k) for k in (1, 3, 5)}
    return [
        means(precisions | {f"nDCG@{k}": 100 * ndcg_at(hit, sizes, k) for k in (3, 5)}),
        ratios({name: (100 * gained, ideal) for name, (gained, ideal) in gains.items()}),
        means({f"R@{k}": 100 * recall_at(hit, sizes, k) for k in (10, 100)}),
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
    return Statistics([f"F1@{_DEPTH} {name}" for name in members], terms, finish)


def probability_statistics(judged: JudgedProbabilities) -> list[Statistics]:
    """ECE and Brier score as fractions; the F1 of the assigned sets and of the best fixed k in percent.

    The best fixed k is that of all queries, also in a resample.
    """
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
