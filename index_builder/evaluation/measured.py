"""Measure settings on a test split. Each metric is computed once, for all texts and for each resample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recollect.index_builder.evaluation.bootstrap import Sampled, bootstrap
from recollect.index_builder.evaluation.deciles import by_frequency
from recollect.index_builder.evaluation.predictions import GroundTruth, Predictions, Setting, predict_top
from recollect.index_builder.evaluation.statistics import RANKING_METRICS, probability_statistics, ranking_statistics
from recollect.service.predictor.predictor import Predictor
from recollect.trainer.data.split import Split


@dataclass(frozen=True)
class Measured:
    """The predictions with one setting, and their metrics.

    Attributes:
        setting: The setting.
        found: The predictions.
        metrics: The defined metrics, by name.
        with_words: Whether the setting has a word weight.
    """

    setting: Setting
    found: Predictions
    metrics: dict[str, Sampled]
    with_words: bool

    @property
    def fields(self) -> dict[str, float | str]:
        """The setting, by the names of its options."""
        return self.setting.to_dict(self.with_words)

    def row(self) -> dict[str, Any]:
        """The setting, each metric (None if it is undefined), and the ends of the 95% confidence intervals."""
        values = dict.fromkeys(RANKING_METRICS) | {name: metric.value for name, metric in self.metrics.items()}
        best_k = {} if self.found.judged is None else {"best k": self.found.judged.best_k}
        intervals = {name: list(metric.interval) for name, metric in self.metrics.items()}
        return self.fields | values | best_k | {"intervals": intervals}

    def deciles(self, truth: GroundTruth) -> list[dict[str, Any]]:
        """The metrics of each decile of label frequency."""
        found = self.found
        return by_frequency(found.labels, found.hit, truth.relevance, truth.label_counts, truth.deciles, found.sources)


def measure(
    predictor: Predictor, test: Split, truth: GroundTruth, grid: list[Setting], propensity: tuple[float, float]
) -> list[Measured]:
    """Predict the labels of the test texts with each setting, and compute the metrics."""
    predictions = predict_top(predictor, test, truth, grid)
    statistics = []
    for found in predictions:
        instances = predictor.manifest.counts.instances
        of_setting = ranking_statistics(
            found.labels, found.hit, truth.relevance, truth.label_counts, instances, propensity
        )
        if found.judged is not None:
            of_setting += probability_statistics(found.judged)
        statistics.append(of_setting)
    with_words = predictor.memory.words is not None
    return [
        Measured(setting, found, metrics, with_words)
        for setting, found, metrics in zip(grid, predictions, bootstrap(statistics), strict=True)
    ]


def differences(first: dict[str, Sampled], second: dict[str, Sampled]) -> dict[str, Any]:
    """Each metric of both, the first minus the second, and the ends of the 95% confidence intervals."""
    gains = {name: first[name] - other for name, other in second.items() if name in first}
    return {name: gain.value for name, gain in gains.items()} | {
        "intervals": {name: list(gain.interval) for name, gain in gains.items()}
    }
