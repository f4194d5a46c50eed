"""`recollect evaluate`: measure a bundle on a test split with the code of the service, one row for each setting."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from recollect.core.bundle.manifest import Order
from recollect.core.errors import BundleError
from recollect.core.predictor import Predictor
from recollect.core.system.console import print_status
from recollect.index_builder.errors import BuildError
from recollect.index_builder.evaluation.groups import FieldGroups
from recollect.index_builder.evaluation.measured import (
    Comparison,
    Measured,
    differences,
    measure,
    popularity,
    report,
)
from recollect.index_builder.evaluation.predictions import Memories, Setting, align_labels, predict_top
from recollect.index_builder.settings import EvaluateSettings
from recollect.model import open_model
from recollect.trainer.data.dataset import Dataset, is_table, open_named, with_remembered
from recollect.trainer.data.split import Split
from recollect.trainer.settings import DatasetSettings

# Lambdas of the chart, with more values near 0, where the quality of most memories changes fastest.
_LAMBDAS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# A table is that of the training if the memory has at least this share of the table's texts for training. Of a table
# for tests, the memory has few texts.
_SAME_TABLE = 0.1

_Settings = TypeVar("_Settings", bound=DatasetSettings)


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        rows: Each row has a setting, its order, and its metrics in percent; an undefined metric is None. Rows with
            probabilities also have `ECE@1`, `ECE@5` and `Brier`, which are fractions. `intervals` has the ends of the
            95% confidence interval of each metric.
        coverage: The coverage statements of the bundle, and the shares found here; empty without probabilities.
        differences: For each setting with several orders, each metric by probability and by macro minus the metric by
            score, and the ends of the 95% confidence interval of this difference.
        deciles: For each setting, the metrics of each decile of label frequency (`by_frequency`), by `DECILES`.
        by: For each setting, the `field` of `--by`, its number of `values`, and the metrics of its most frequent values
            (`FieldGroups.measure`) as `groups`; empty without the flag.
        comparison: The version of `--compare`, its metrics with the numbers of training texts of `version`, and the
            differences; None without the flag.
        chosen: The row of the default options of the version, which may be one of `rows`.
        votes: The row with the same options in order of score; None if `chosen` has this order.
        popularity: The metrics of the labels with the most training texts, as the answer to every text.
        texts: The mean number of true labels of a text (`labels`), the highest one (`most`), and the best possible
            P@5 in percent.
    """

    version: str
    queries: int
    rows: list[dict[str, Any]]
    coverage: list[dict[str, float]]
    differences: list[dict[str, Any]]
    deciles: list[dict[str, Any]]
    by: list[dict[str, Any]]
    comparison: dict[str, Any] | None
    chosen: dict[str, Any]
    votes: dict[str, Any] | None
    popularity: dict[str, Any]
    texts: dict[str, float]


def evaluate(settings: EvaluateSettings) -> Evaluation:
    """Measure a bundle with every combination of the given lambdas, temperatures and numbers of keys.

    Raises:
        StoreError, BundleError: If the version cannot be opened.
        KeyFileError: If the public key cannot be read.
        DatasetError: If the dataset is invalid.
        BuildError: If a bundle has none of the dataset's labels, uids are row numbers in another order, no label has
            the field of `--by`, or `--word-weight` needs a lexical index.
    """
    if settings.report:
        settings.report.mkdir(parents=True, exist_ok=True)  # a wrong path fails here, before the work of minutes
    predictor = _open(settings, settings.version)
    other = None if settings.compare is None else _open(settings, settings.compare)
    settings, dataset, test = open_test(settings, predictor)
    test = test.head(settings.limit) if settings.limit else test
    truth = align_labels(dataset, test, predictor.bundle)
    if len(test.labels.indices) == 0:
        raise BuildError(
            f"{settings.dataset}: expected test texts with labels, found {len(test):,} texts without any; "
            "add the true labels to the test split"
        )
    if without := int((truth.relevance.getnnz(axis=1) == 0).sum()):
        print_status(f"{settings.dataset}: {without:,} of {len(test):,} test texts have no true label and score 0")
    true = truth.relevance.indices
    if unknown := int((true >= len(predictor.bundle.labels)).sum()):
        print_status(
            f"{settings.dataset}: {unknown:,} of {len(true):,} true labels ({unknown / len(true):.0%}) are not in the "
            "memory, so no answer has them"
        )
    groups = None if settings.by is None else FieldGroups.of(predictor, settings.by, truth.labels)
    grid = _grid(settings, predictor)
    sweep = [dataclasses.replace(grid[0], lambda_=lambda_) for lambda_ in _LAMBDAS] if settings.report else []
    chosen = Setting.default(predictor)
    votes = chosen.by("score", predictor.defaults)
    others = [setting for setting in dict.fromkeys((chosen, votes)) if setting not in grid]
    measured = measure(predictor, test, truth, [*grid, *others, *sweep], settings.propensity)
    rows, of_sweep = measured[: len(grid)], measured[len(grid) + len(others) :]
    row_of = {row.setting: row.row() for row in measured[: len(grid) + len(others)]}
    # The first setting, in the order in which the bundle answers by default.
    answers_by = rows[0].setting.by(predictor.defaults.order, predictor.defaults)
    answering = next((row for row in rows if row.setting == answers_by), rows[0])
    comparison = None
    if other is not None:
        other_truth = align_labels(dataset, test, other.bundle)
        (compared,) = measure(other, test, other_truth, [Setting.default(other)], settings.propensity, truth)
        comparison = Comparison(other.version, compared, differences(answering.metrics, compared.metrics))
    info = predictor.manifest.probabilities
    judged = next((row.predictions.judged for row in rows if row.predictions.judged), None)
    evaluation = Evaluation(
        predictor.version,
        len(test),
        [row.row() for row in rows],
        judged.coverage(info.coverage) if info is not None and judged is not None else [],
        _differences(rows),
        [row.fields | row.deciles(truth) for row in rows],
        [] if groups is None else [row.fields | row.by(groups, truth) for row in rows],
        None if comparison is None else comparison.as_json(),
        row_of[chosen],
        row_of[votes] if votes != chosen else None,
        popularity(truth, settings.propensity),
        truth.limits(),
    )
    if settings.report:
        from recollect.index_builder.evaluation.report import QualityPage  # loads matplotlib

        dataset_name = settings.dataset.resolve().name
        page = QualityPage(predictor, dataset_name, test, truth, answering, of_sweep, comparison, evaluation, groups)
        page.write(settings.report)
    return evaluation


def open_test(settings: _Settings, predictor: Predictor) -> tuple[_Settings, Dataset, Split]:
    """Open a dataset as the training of a bundle read it, and read its test split. Return the settings, too.

    Raises:
        BundleError: If a flag in the manifest is wrong.
        DatasetError: If the dataset is invalid.
        BuildError: If all texts of the test split are in the memory.
    """
    settings = _as_trained(settings, predictor)
    dataset = open_named(settings)
    test = dataset.read_split("test")
    _require_new_texts(settings.dataset, test, predictor)
    return settings, dataset, test


def _as_trained(settings: _Settings, predictor: Predictor) -> _Settings:
    """The settings with the flags of the training of a bundle, where the user gives none.

    The share of the held-out texts is that of the table of the training. Another table is a test split as a whole.

    Raises:
        BundleError: If a flag in the manifest is wrong.
        DatasetError: If the dataset is invalid.
    """
    found = with_remembered(settings, predictor.manifest.dataset, f"version {predictor.version}", BundleError)
    if "test_fraction" in settings.model_fields_set or not found.test_fraction or not is_table(found):
        return found
    whole = found.model_copy(update={"test_fraction": 0.0})
    known, texts = _count_learnt(open_named(whole, note=lambda _: None).read_split("test"), predictor)
    if known >= _SAME_TABLE * (1 - found.test_fraction) * texts:
        return found
    held_out = f"; --test-fraction {found.test_fraction:g} would hold out a part of them" if known else ""
    print_status(
        f"{found.dataset}: all texts are the test split, because version {predictor.version} was trained from another "
        f"table: {known:,} of {texts:,} different texts are in its memory{held_out}"
    )
    return whole


def _count_learnt(test: Split, predictor: Predictor) -> tuple[int, int]:
    """The number of the different texts of a test split that are in the memory of a bundle, and of all of them."""
    texts, known = {*test.entries.strings()}, predictor.bundle.instances.texts
    return len({text for row in range(len(known)) if (text := known[row]) in texts}), len(texts)


def learnt_share(test: Split, predictor: Predictor) -> float:
    """The share of the different texts of a test split that are in the memory of a bundle."""
    learnt, texts = _count_learnt(test, predictor)
    return learnt / texts


def _require_new_texts(path: Path, test: Split, predictor: Predictor) -> None:
    """Refuse a test split whose texts are all in the memory, from which an answer takes their labels."""
    learnt, texts = _count_learnt(test, predictor)
    if learnt == texts:
        raise BuildError(
            f"{path}: expected other texts than those of version {predictor.version}, found none; name a dataset "
            "with other texts, or train with --test-fraction .1"
        )
    if learnt:
        print_status(f"{path}: {learnt:,} of {texts:,} different texts are also in the memory")


def _open(settings: EvaluateSettings, version: str) -> Predictor:
    flags = settings.verify_key, settings.bundle_cache, settings.threads, settings.device
    return open_model(settings.store, version, *flags, live="off").predictor


def _differences(rows: list[Measured]) -> list[dict[str, Any]]:
    """Compare the other orders of each setting with the score."""
    by_score = {row.setting: row for row in rows}
    return [
        row.fields
        | {"order": f"{row.setting.order} - score"}
        | differences(row.metrics, by_score[dataclasses.replace(row.setting, order="score", tail_weight=None)].metrics)
        for row in rows
        if row.setting.order != "score"
    ]


def default_metrics(predictor: Predictor, dataset: Dataset, test: Split) -> dict[str, float]:
    """Measure a bundle with its default options on a test split, in percent. Undefined metrics are left out."""
    truth = align_labels(dataset, test, predictor.bundle)
    (predicted,) = predict_top(predictor, test, truth, [Setting.default(predictor)])
    metrics = report(predicted.labels, truth.relevance, truth.label_counts, truth.instances)
    return {name: value for name, value in metrics.items() if value is not None}


def _grid(settings: EvaluateSettings, predictor: Predictor) -> list[Setting]:
    defaults = predictor.manifest.defaults
    if any(settings.word_weight) and predictor.memory.words is None:
        raise BuildError(
            f"--word-weight: version {predictor.version} has no lexical index; build one with "
            "`recollect build --lexical on`"
        )
    kinds: tuple[Memories, ...] = get_args(Memories) if settings.separate_memories else ("joint",)
    settings_of_score = [
        Setting(*options, order="score", memories=memories)
        for options in itertools.product(
            settings.lambda_ or [defaults.lambda_],
            settings.temperature or [defaults.temperature],
            settings.top_b or [defaults.top_b],
            settings.word_weight or [defaults.word_weight],
        )
        for memories in kinds
    ]
    # Ranker and probabilities were fitted for the bundle's default options, so only rows with these have other orders.
    # Without a ranker, the order by probability is that by score.
    joint = (setting for setting in settings_of_score if setting.memories == "joint")
    by_default = [setting for setting in joint if setting.options().uses_votes_of(defaults)]
    orders: list[Order] = [] if predictor.memory.ranker is None else ["probability"]
    if predictor.manifest.probabilities is not None and defaults.tail_weight is not None:
        orders.append("macro")
    return [*settings_of_score, *(setting.by(order, defaults) for order in orders for setting in by_default)]
