"""`recollect evaluate`: measure a bundle on a test split with the code of the service, one row for each setting."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index_builder.errors import BuildError
from index_builder.evaluation.bootstrap import Sampled, bootstrap
from index_builder.evaluation.deciles import by_frequency
from index_builder.evaluation.predictions import Setting, align_labels, predict_top
from index_builder.evaluation.statistics import probability_statistics, ranking_statistics
from index_builder.settings import EvaluateSettings
from service.model import open_model
from service.predictor.predictor import Predictor
from trainer.data.dataset import open_dataset
from trainer.files import write_text
from trainer.metrics import report


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        version: The measured version.
        queries: Number of test texts.
        rows: Each row has a setting, its order, and its metrics in percent; an undefined metric is None. Rows with
            probabilities also have `ECE@1`, `ECE@5` and `Brier`, which are fractions. `intervals` has the ends of the
            95% confidence interval of each metric.
        coverage: The coverage statements of the bundle, and the shares found here; empty without probabilities.
        differences: For each setting with both orders, each metric by probability minus the metric by score, and the
            ends of the 95% confidence interval of this difference.
        deciles: For each setting, the metrics of each decile of label frequency (`by_frequency`).
    """

    version: str
    queries: int
    rows: list[dict[str, Any]]
    coverage: list[dict[str, float]]
    differences: list[dict[str, Any]]
    deciles: list[dict[str, Any]]


def evaluate(settings: EvaluateSettings) -> Evaluation:
    """Measure a bundle with every combination of the given lambdas, temperatures and numbers of keys.

    Raises:
        StoreError, BundleError: If the version cannot be opened.
        KeyFileError: If the public key cannot be read.
        DatasetError: If the dataset is invalid.
        BuildError: If the bundle has none of the dataset's labels, or `--word-weight` needs a lexical index.
    """
    predictor = open_model(
        settings.store,
        settings.version,
        settings.verify_key,
        settings.bundle_cache,
        settings.threads,
        settings.device,
        live="off",
    ).predictor
    dataset = open_dataset(
        settings.dataset, settings.format, text_fields=settings.text_fields, empty_texts=settings.empty_texts
    )
    test = dataset.read_split("test")
    test = test.head(settings.limit) if settings.limit else test
    truth = align_labels(dataset.labels, test, predictor.bundle.labels, settings.dataset)
    if settings.report and predictor.manifest.probabilities is None:
        raise BuildError(f"--report: expected a version with probabilities, found none in {predictor.version}")
    grid = _grid(settings, predictor)
    predictions = predict_top(predictor, test, truth, grid)
    instances, with_words = predictor.manifest.training_instances, predictor.memory.words is not None
    rows, judged, statistics = [], None, []
    for setting, found in zip(grid, predictions, strict=True):
        measured = found.labels, truth.relevance, truth.label_counts, instances, settings.propensity
        rows.append(setting.to_dict(with_words) | dict[str, Any](report(*measured)))
        statistics.append(ranking_statistics(*measured))
        if (with_probabilities := found.judge(truth.relevance)) is not None:
            judged = with_probabilities
            rows[-1] |= judged.metrics()
            statistics[-1] += probability_statistics(judged)
    sampled = bootstrap(statistics)
    for row, metrics in zip(rows, sampled, strict=True):
        row["intervals"] = {name: list(metric.interval) for name, metric in metrics.items()}
    if settings.report and judged is not None:
        settings.report.mkdir(parents=True, exist_ok=True)
        write_text(settings.report / "reliability.svg", judged.diagram())
    info = predictor.manifest.probabilities
    coverage = judged.coverage(info.coverage) if info is not None and judged is not None else []
    differences = _differences(grid, sampled, with_words)
    deciles = [
        setting.to_dict(with_words)
        | {"deciles": by_frequency(found.labels, truth.relevance, truth.label_counts, truth.deciles, found.sources)}
        for setting, found in zip(grid, predictions, strict=True)
    ]
    return Evaluation(predictor.version, len(test), rows, coverage, differences, deciles)


def _differences(grid: list[Setting], sampled: list[dict[str, Sampled]], with_words: bool) -> list[dict[str, Any]]:
    """Compare the two orders of each setting that has both."""
    by_score = {setting: metrics for setting, metrics in zip(grid, sampled, strict=True) if setting.order == "score"}
    differences = []
    for setting, metrics in zip(grid, sampled, strict=True):
        if setting.order == "probability":
            others = by_score[dataclasses.replace(setting, order="score")]
            gains = {name: metrics[name] - other for name, other in others.items() if name in metrics}
            differences.append(
                setting.to_dict(with_words)
                | {"order": "probability - score"}
                | {name: gain.value for name, gain in gains.items()}
                | {"intervals": {name: list(gain.interval) for name, gain in gains.items()}}
            )
    return differences


def default_metrics(predictor: Predictor, folder: Path) -> dict[str, float]:
    """Measure a bundle with its default options on a test split, in percent. Undefined metrics are left out."""
    dataset = open_dataset(folder, "auto")
    test = dataset.read_split("test")
    truth = align_labels(dataset.labels, test, predictor.bundle.labels, folder)
    defaults = predictor.manifest.defaults
    setting = Setting(defaults.lambda_, defaults.temperature, defaults.top_b, defaults.word_weight, defaults.order)
    (found,) = predict_top(predictor, test, truth, [setting])
    metrics = report(found.labels, truth.relevance, truth.label_counts, predictor.manifest.training_instances)
    return {name: value for name, value in metrics.items() if value is not None}


def _grid(settings: EvaluateSettings, predictor: Predictor) -> list[Setting]:
    defaults = predictor.manifest.defaults
    if any(settings.word_weight) and predictor.memory.words is None:
        raise BuildError(
            f"--word-weight: version {predictor.version} has no lexical index; build one with "
            "`recollect build --lexical on`"
        )
    settings_of_score = [
        Setting(*each, order="score")
        for each in itertools.product(
            settings.lambda_ or [defaults.lambda_],
            settings.temperature or [defaults.temperature],
            settings.top_b or [defaults.top_b],
            settings.word_weight or [defaults.word_weight],
        )
    ]
    if predictor.memory.reranker is None:
        return settings_of_score
    # The ranker was fitted for the bundle's default options, so only rows with these options are ordered by it.
    by_default = (each for each in settings_of_score if each.options().uses_votes_of(defaults))
    return [*settings_of_score, *(dataclasses.replace(each, order="probability") for each in by_default)]
