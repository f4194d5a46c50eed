"""`recollect evaluate`: measure a bundle on a test split with the code of the service, one row for each setting."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index_builder.errors import BuildError
from index_builder.evaluation.predictions import Setting, align_labels, predict_top
from index_builder.settings import EvaluateSettings
from service.model import open_model
from service.predictor.predictor import Predictor
from trainer.data.dataset import open_dataset
from trainer.files import write_text
from trainer.metrics import report

# Metrics that are fractions; all others are in percent.
_FRACTIONS = ("ECE@1", "ECE@5", "Brier")


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        version: The measured version.
        queries: Number of test texts.
        rows: Each row has a setting, its order, and its metrics in percent; an undefined metric is None. Rows with
            probabilities also have `ECE@1`, `ECE@5` and `Brier`, which are fractions.
        coverage: The coverage statements of the bundle, and the shares found here; empty without probabilities.
    """

    version: str
    queries: int
    rows: list[dict[str, Any]]
    coverage: list[dict[str, float]]


def evaluate(settings: EvaluateSettings) -> Evaluation:
    """Measure a bundle with every combination of the given lambdas, temperatures and numbers of keys.

    Raises:
        StoreError, BundleError: If the version cannot be opened.
        KeyFileError: If the public key cannot be read.
        DatasetError: If the dataset is invalid.
        BuildError: If the bundle has none of the dataset's labels, or `--word-weight` needs a lexical index.
    """
    predictor = open_model(
        settings.store, settings.version, settings.verify_key, settings.bundle_cache, settings.threads
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
    instances = predictor.manifest.training_instances
    rows, judged = [], None
    for setting, found in zip(grid, predictions, strict=True):
        metrics = report(found.labels, truth.relevance, truth.label_counts, instances, settings.propensity)
        rows.append(setting.to_dict(predictor.words is not None) | dict[str, Any](metrics))
        if (with_probabilities := found.judge(truth.relevance)) is not None:
            judged = with_probabilities
            rows[-1] |= judged.metrics()
    if settings.report and judged is not None:
        settings.report.mkdir(parents=True, exist_ok=True)
        write_text(settings.report / "reliability.svg", judged.diagram())
    info = predictor.manifest.probabilities
    coverage = judged.coverage(info.coverage) if info is not None and judged is not None else []
    return Evaluation(predictor.version, len(test), rows, coverage)


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
    if any(settings.word_weight) and predictor.words is None:
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
    if predictor.reranker is None:
        return settings_of_score
    # The ranker was fitted for the bundle's default options, so only rows with these options are ordered by it.
    by_default = (each for each in settings_of_score if each.options().uses_votes_of(defaults))
    return [*settings_of_score, *(dataclasses.replace(each, order="probability") for each in by_default)]


def format_table(evaluation: Evaluation) -> Iterator[str]:
    """Format the result rows as aligned lines. The headings are short, so that the lines fit a terminal."""
    short = {
        "temperature": "tau",
        "top_b": "b",
        "word_weight": "words",
        "F1@5 extreme tail": "xtail",
        "F1@5 torso": "torso",
        "F1@5 tail": "tail",
        "F1@5 unseen": "unseen",
    }
    names = list(dict.fromkeys(name for row in evaluation.rows for name in row))
    cells = [[short.get(name, name) for name in names]]
    cells += [[_format_cell(name, row.get(name)) for name in names] for row in evaluation.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _format_cell(name: str, value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name in ("lambda", "temperature", "top_b", "word_weight", "best k"):
        return f"{value:g}"
    return f"{value:.3f}" if name in _FRACTIONS else f"{value:.2f}"
