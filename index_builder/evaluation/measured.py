"""Measure settings on a test split. Each metric is computed once, for all texts and for each resample.

The metrics are functions of sums over the queries, so that they can be resampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from recollect.core.predictor import Predictor
from recollect.index_builder.evaluation.bootstrap import Sampled, Statistics, bootstrap, means, ratios
from recollect.index_builder.evaluation.deciles import by_frequency
from recollect.index_builder.evaluation.groups import FieldGroups
from recollect.index_builder.evaluation.predictions import GroundTruth, Predictions, Setting, predict_top
from recollect.index_builder.evaluation.probabilities import BINS, DEPTHS, JudgedProbabilities, bin_of
from recollect.trainer.data.split import Split
from recollect.trainer.metrics import (
    METRICS,
    PROPENSITY,
    SEGMENTS,
    hits,
    label_f1,
    ndcg_at,
    precision_at,
    propensity_gains,
    propensity_weights,
    recall_at,
)

# Depth of the macro F1 and of the coverage.
_DEPTH = 5
MACRO_F1, COVERAGE = f"macro F1@{_DEPTH}", f"coverage@{_DEPTH}"
# The metrics of every setting, in the order in which tables print them.
RANKING_METRICS = (*METRICS, MACRO_F1, COVERAGE, *(f"F1@{_DEPTH} {segment}" for segment in SEGMENTS))


def ranking_statistics(
    predictions: Int[np.ndarray, "query top_k"],
    hit: Bool[np.ndarray, "query top_k"],
    truth: sparse.csr_matrix,
    label_counts: Int[np.ndarray, " label"],
    instances: int,
    propensity: tuple[float, float],
) -> list[Statistics]:
    """The metrics of a ranking, in percent. The truth has sorted and distinct labels.

    The predictions are best first; -1 pads short lists. `propensity` is A and B of the propensity model.
    """
    sizes = np.diff(truth.indptr)
    weights = propensity_weights(label_counts, instances, *propensity)
    gains = {f"PSP@{k}": propensity_gains(predictions, hit, truth, weights, k) for k in (1, 3, 5)}
    precisions = {f"P@{k}": 100 * precision_at(hit, k) for k in (1, 3, 5)}
    return [
        means(precisions | {f"nDCG@{k}": 100 * ndcg_at(hit, sizes, k) for k in (3, 5)}),
        ratios({name: (100 * gained, ideal) for name, (gained, ideal) in gains.items()}),
        means({f"R@{k}": 100 * recall_at(hit, sizes, k) for k in (10, 100)}),
        macro_f1(predictions, hit, truth, label_counts),
    ]


def report(
    predictions: Int[np.ndarray, "query top_k"],
    truth: sparse.csr_matrix,
    label_counts: Int[np.ndarray, " label"],
    instances: int,
    propensity: tuple[float, float] = PROPENSITY,
) -> dict[str, float | None]:
    """All metrics of a ranking in percent; None for the F1 of a segment without labels.

    The arguments are those of `ranking_statistics`. R@100 needs 100 predictions for each query.
    """
    hit, once = hits(predictions, truth), np.ones((1, truth.shape[0]))
    metrics: dict[str, float | None] = dict.fromkeys(RANKING_METRICS)
    for statistics in ranking_statistics(predictions, hit, truth, label_counts, instances, propensity):
        metrics |= zip(statistics.names, statistics.values(once)[0].tolist(), strict=True)
    return metrics


def popularity(truth: GroundTruth, propensity: tuple[float, float]) -> dict[str, float | None]:
    """The metrics, in percent, if the answer to every text is the labels with the most training texts."""
    return report(truth.most_frequent(), truth.relevance, truth.label_counts, truth.instances, propensity)


def macro_f1(
    predictions: Int[np.ndarray, "query top_k"],
    hit: Bool[np.ndarray, "query top_k"],
    truth: sparse.csr_matrix,
    label_counts: Int[np.ndarray, " label"],
    k: int = _DEPTH,
) -> Statistics:
    """F1@k of each label over the top k of all queries, averaged over the labels of each segment that has labels.

    The F1 of a label that is neither true nor predicted is 0. Macro F1 and coverage of all labels are means over the
    labels that are true of a query; see `by_label`.
    """
    predictions, hit = predictions[:, :k], hit[:, :k]
    members = {name: (label_counts > more) & (label_counts <= limit) for name, (more, limit) in SEGMENTS.items()}
    members = {name: inside for name, inside in members.items() if inside.any()}
    # A label that is neither true nor predicted has the F1 0 in every resample.
    present = np.union1d(truth.indices, predictions[predictions >= 0])
    shares = np.stack([inside[present] / inside.sum() for inside in members.values()], axis=1)
    is_true = np.isin(present, truth.indices).astype(np.float64)

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
        f1: Float[np.ndarray, "resample label"] = label_f1(true_positives, predicted_and_true)
        of_true = np.stack([f1 @ is_true, (true_positives > 0) @ is_true], axis=1) / max(1, is_true.sum())
        return 100 * np.concatenate([of_true, f1 @ shares], axis=1)

    terms = sparse.hstack([counted(hit), counted(predictions >= 0) + true], format="csr")
    return Statistics([f"macro F1@{k}", f"coverage@{k}", *(f"F1@{k} {name}" for name in members)], terms, finish)


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
        distance, count = (values.sum(axis=1, keepdims=True) for values in (np.abs(excess), predictions))
        return np.asarray(distance / np.maximum(count, 1))

    return Statistics([f"ECE@{k}"], np.concatenate(parts, axis=1), finish, limit=1.0)


@dataclass(frozen=True)
class Measured:
    """The predictions with one setting, and their metrics."""

    setting: Setting
    predictions: Predictions
    metrics: dict[str, Sampled]  # without undefined ones
    hidden: frozenset[str]  # the fields of the setting that do not differ between rows

    @property
    def fields(self) -> dict[str, float | str]:
        """The setting, by the names of its options."""
        return self.setting.to_dict(self.hidden)

    def row(self) -> dict[str, Any]:
        """The setting, each metric (None if it is undefined), and the ends of the 95% confidence intervals."""
        values = dict.fromkeys(RANKING_METRICS) | {name: metric.value for name, metric in self.metrics.items()}
        judged = self.predictions.judged
        best_k = {} if judged is None else {"best k": judged.best_k}
        intervals = {name: list(metric.interval) for name, metric in self.metrics.items()}
        return self.fields | values | best_k | {"intervals": intervals}

    def deciles(self, truth: GroundTruth) -> dict[str, list[dict[str, Any]]]:
        """The metrics of each decile of label frequency, in each way to form deciles."""
        predicted = self.predictions
        return {
            name: by_frequency(predicted.labels, predicted.hit, truth.relevance, truth.label_counts, deciles, sources)
            for (name, deciles), sources in zip(truth.deciles.items(), predicted.sources, strict=True)
        }

    def by(self, groups: FieldGroups, truth: GroundTruth) -> dict[str, Any]:
        """The metrics of the most frequent values of a field."""
        measured = groups.measure(self.predictions.labels, self.predictions.hit, truth.relevance)
        return {"field": groups.field, "values": len(groups.values), "groups": measured}


def measure(
    predictor: Predictor,
    test: Split,
    truth: GroundTruth,
    grid: list[Setting],
    propensity: tuple[float, float],
    counted: GroundTruth | None = None,
) -> list[Measured]:
    """Predict the labels of the test texts with each setting, and compute the metrics.

    Args:
        counted: Ground truth of another version, whose numbers of training texts PSP and F1 use. Two versions with
            equal answers then have equal metrics. None: those of this version.
    """
    counted = counted or truth
    predictions = predict_top(predictor, test, truth, grid)
    statistics = []
    for predicted in predictions:
        labels = truth.translate(predicted.labels, counted)
        of_setting = ranking_statistics(
            labels, predicted.hit, counted.relevance, counted.label_counts, counted.instances, propensity
        )
        if predicted.judged is not None:
            of_setting += probability_statistics(predicted.judged)
        statistics.append(of_setting)
    several_memories = len({setting.memories for setting in grid}) > 1
    shown = {"word_weight": predictor.memory.words is not None, "memories": several_memories}
    hidden = frozenset(name for name, differs in shown.items() if not differs) | {"tail_weight"}
    return [
        Measured(setting, predicted, metrics, hidden)
        for setting, predicted, metrics in zip(grid, predictions, bootstrap(statistics), strict=True)
    ]


def differences(first: dict[str, Sampled], second: dict[str, Sampled]) -> dict[str, Any]:
    """Each metric of both, the first minus the second, and the ends of the 95% confidence intervals."""
    gains = {name: first[name] - other for name, other in second.items() if name in first}
    return {name: gain.value for name, gain in gains.items()} | {
        "intervals": {name: list(gain.interval) for name, gain in gains.items()}
    }


@dataclass(frozen=True)
class Comparison:
    """Another version with its own default options, and the metrics of the first version minus those of this one.

    PSP and F1 of both use the numbers of training texts of the first version.
    """

    version: str
    other: Measured
    differences: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"version": self.version, "row": self.other.row(), "differences": self.differences}
