"""The sections with figures: metrics, curves, label frequency, probabilities, and the comparison of two versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from recollect.index_builder.evaluation.comparison import Comparison
from recollect.index_builder.evaluation.measured import Measured
from recollect.index_builder.evaluation.predictions import Setting
from recollect.index_builder.evaluation.probability_metrics import reliability
from recollect.index_builder.evaluation.probability_report import DEPTHS, JudgedProbabilities
from recollect.index_builder.evaluation.report.subject import Subject
from recollect.trainer.metrics import recall_at
from recollect.trainer.report.charts import Line, bar_chart, line_chart
from recollect.trainer.report.page import Cell, Chart, Section, Table
from recollect.trainer.report.scale import Axis

# More values near 0, where the quality of most memories changes fastest.
_LAMBDAS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_CURVES = ("P@1", "nDCG@5", "PSP@5")
_DEPTHS_OF_RECALL = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
_IMPORTANT = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@10", "R@100")
_FRACTIONS = ("ECE@1", "ECE@5", "Brier")


def lambda_sweep(setting: Setting) -> list[Setting]:
    """The settings of the lambda curve: those of a setting, in order of score."""
    return [dataclasses.replace(setting, lambda_=each, order="score") for each in _LAMBDAS]


def quality_section(subject: Subject) -> Section:
    return Section(
        "Quality",
        "Metrics are in percent; the calibration error (ECE) and the Brier score are fractions. The intervals show how "
        "far a metric would move with other test texts of the same kind (bootstrap over the texts).",
        tables=[_metrics_table("The default options", subject.answering, _IMPORTANT)],
        folded=[_metrics_table("All metrics", subject.answering, tuple(subject.answering.metrics))],
    )


def _metrics_table(caption: str, measured: Measured, names: Sequence[str]) -> Table:
    rows = []
    for name in names:
        metric, form = measured.metrics[name], ".3f" if name in _FRACTIONS else ".2f"
        rows.append([Cell(name), Cell(format(metric.value, form)), Cell(_interval(metric.interval, form))])
    return Table(caption, ["metric", "value", "95% interval"], rows)


def _interval(ends: Sequence[float], form: str) -> str:
    low, high = ends
    return f"{low:{form}} to {high:{form}}"


def comparison_section(subject: Subject, comparison: Comparison) -> Section:
    gains, first, second = comparison.differences, comparison.measured.metrics, comparison.other.metrics
    rows = []
    for name in (each for each in first if each in gains):
        low, high = gains["intervals"][name]
        form = ".3f" if name in _FRACTIONS else ".2f"
        difference = [
            Cell(f"{gains[name]:+{form}}", best=low > 0 or high < 0),
            Cell(_interval((low, high), f"+{form}")),
        ]
        rows.append([Cell(name), *(Cell(format(each[name].value, form)) for each in (first, second)), *difference])
    headings = ["metric", subject.version, comparison.version, "difference", "95% interval"]
    important = [row for row in rows if row[0].text in _IMPORTANT]
    better, worse = comparison.changed_texts()
    return Section(
        f"Comparison with {comparison.version}",
        f"Both versions answered the same {len(subject.test):,} texts, {comparison.version} with its default options. "
        f"{subject.version} has the higher nDCG@5 on {better:,} texts, and {comparison.version} on {worse:,}. A "
        "difference is marked if its interval does not contain 0.",
        tables=[Table("The differences", headings, important)],
        folded=[Table("All differences", headings, rows)],
    )


def curves_section(subject: Subject, comparison: Comparison | None) -> Section:
    return Section(
        "λ and recall",
        "First chart: λ is the weight of the training texts against the label texts. Labels are in order of their "
        "votes, and the bands are 95% intervals. Second chart: the share of the true labels among the first k. A "
        "choice among these k labels can find no more.",
        [_lambda_chart(subject), _recall_chart(subject, comparison)],
    )


def _lambda_chart(subject: Subject) -> Chart:
    answering = dataclasses.replace(subject.answering.setting, order="score")
    wanted = {answering, *lambda_sweep(answering)}
    points = {each.setting: each for each in subject.measured if each.setting in wanted}
    curve = sorted(points.values(), key=lambda each: each.setting.lambda_)
    lines = [
        Line(
            name,
            [(each.setting.lambda_, each.metrics[name].value) for each in curve],
            band=[each.metrics[name].interval for each in curve],
        )
        for name in _CURVES
    ]
    best = {name: curve[int(np.argmax([each.metrics[name].value for each in curve]))] for name in _CURVES}
    rows = [
        [
            Cell(f"{each.setting.lambda_:g}"),
            *(Cell(f"{each.metrics[name].value:.2f}", best=each is best[name]) for name in _CURVES),
        ]
        for each in curve
    ]
    x = Axis("λ: 0 label texts alone, 1 training texts alone", least=0, most=1)
    return Chart(line_chart("Quality by λ", lines, x, Axis("percent")), Table("Quality by λ", ["λ", *_CURVES], rows))


def _recall_chart(subject: Subject, comparison: Comparison | None) -> Chart:
    measured = {subject.version: subject.answering}
    if comparison is not None:
        measured[comparison.version] = comparison.other
    curves = {
        name: [100 * float(np.mean(recall_at(each.found.hit, each.found.sizes, k))) for k in _DEPTHS_OF_RECALL]
        for name, each in measured.items()
    }
    lines = [Line(name, list(zip(_DEPTHS_OF_RECALL, curve, strict=True))) for name, curve in curves.items()]
    y = Axis("percent of the true labels", least=0, most=100)
    rows = [
        [Cell(f"{k}"), *(Cell(f"{curve[at]:.2f}") for curve in curves.values())]
        for at, k in enumerate(_DEPTHS_OF_RECALL)
    ]
    svg = line_chart("Recall of the first k labels", lines, Axis("k", log=True), y)
    return Chart(svg, Table("Recall of the first k labels, in percent", ["k", *curves], rows))


def decile_section(subject: Subject) -> Section:
    deciles = subject.answering.deciles(subject.truth)
    groups, short = ([_range(each, form) for each in deciles] for form in ("{:,}".format, _short))
    recall = {name: [each[name] for each in deciles] for name in ("R@10", "R@100")}
    sources = {"training texts": "instance_keys", "label texts": "label_keys"}
    votes = {name: [each[field] for each in deciles] for name, field in sources.items()}
    fields = ("labels", "true", "P@5", "R@10", "R@100", *sources.values())
    headings = ["training texts of a label", "labels", "true pairs", "part of P@5", "R@10", "R@100"]
    rows = [
        [Cell(group), *(Cell(_number(each[name])) for name in fields)]
        for group, each in zip(groups, deciles, strict=True)
    ]
    x_title = "training texts of a label"
    return Section(
        "Rare and frequent labels",
        "Ten groups with equally many labels, from the rarest in training to the most frequent. First chart: the share "
        "of the true labels among the first 10 and 100. Second chart: the retrieved keys that vote for a true label.",
        [
            Chart(
                bar_chart("Recall by label frequency", short, recall, x_title, Axis("percent", most=100)),
                Table("Quality by label frequency", headings, [row[: len(headings)] for row in rows]),
            ),
            Chart(
                bar_chart("Votes for a true label", short, votes, x_title, Axis("keys")),
                Table("Votes for a true label", [headings[0], *sources], [[row[0], *row[-2:]] for row in rows]),
            ),
        ],
    )


def _range(decile: dict[str, Any], form: Callable[[int], str]) -> str:
    least, most = form(decile["least"]), form(decile["most"])
    return least if least == most else f"{least}–{most}"


def _short(count: int) -> str:
    """A count of at most four characters, because the axis of a chart has little room: 12,345 is 12k."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count // size}{unit}"
    return f"{count}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def probability_section(subject: Subject, coverage: list[dict[str, float]]) -> Section | None:
    """The section of the probabilities; None if the version gives none for the default options."""
    judged = subject.answering.found.judged
    if judged is None:
        return None
    rows = [
        [
            Cell(f"{each['probability']:.4f}"),
            Cell(f"{each['share']:.0%}"),
            Cell(f"{each['found']:.1%}"),
            Cell(f"{each['labels']:.1f}"),
        ]
        for each in coverage
    ]
    headings = ["probability at least", "expected share", "found share", "labels of a text"]
    return Section(
        "Probabilities",
        "Predictions of similar probability form a group. First chart: the share of true labels in a group should "
        "equal their mean probability (dashed line). Second chart: the number of predictions in each group.",
        [reliability_chart(judged), _counts_chart(judged)],
        folded=[Table("Share of the true labels above a probability", headings, rows)] if rows else [],
    )


def reliability_chart(judged: JudgedProbabilities) -> Chart:
    """The reliability diagram."""
    lines, rows = [], []
    for k in DEPTHS:
        bins = reliability(judged.probabilities, judged.hit, k)
        groups = list(zip(bins.probability.tolist(), bins.true_share.tolist(), strict=True))
        lines.append(Line(f"{_first(k)}: ECE {bins.expected_error:.3f}", groups))
        rows += [[Cell(_first(k)), Cell(f"{chance:.3f}"), Cell(f"{true:.3f}")] for chance, true in groups]
    lines.append(Line("ideal", [(0, 0), (1, 1)], marked=False, reference=True))
    title = f"Reliability of the probabilities: {len(judged.sizes):,} texts"
    x, y = (Axis(name, least=0, most=1) for name in ("mean probability of a group", "share of true labels"))
    return Chart(
        line_chart(title, lines, x, y), Table(title, ["predictions", "mean probability", "share of true labels"], rows)
    )


def _counts_chart(judged: JudgedProbabilities) -> Chart:
    found = {k: reliability(judged.probabilities, judged.hit, k) for k in DEPTHS}
    lines = [
        Line(_first(k), list(zip(bins.probability.tolist(), bins.predictions.tolist(), strict=True)))
        for k, bins in found.items()
    ]
    title, x = "Number of predictions", Axis("mean probability of a group", least=0, most=1)
    rows = [
        [Cell(line.name), Cell(f"{chance:.3f}"), Cell(f"{count:,}")] for line in lines for chance, count in line.points
    ]
    return Chart(
        line_chart(title, lines, x, Axis("predictions", log=True)),
        Table(title, ["predictions", "mean probability", "number"], rows),
    )


def _first(k: int) -> str:
    return f"first {k} labels" if k > 1 else "first label"
