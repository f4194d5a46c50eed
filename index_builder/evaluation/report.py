"""`recollect evaluate --report`: one HTML page with metrics, charts by matplotlib, and the hardest labels and texts.

The page needs no other file and no network.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recollect.core.predictor import Predictor
from recollect.core.system.files import write_text
from recollect.index_builder.evaluation.evaluate import Evaluation
from recollect.index_builder.evaluation.groups import FieldGroups
from recollect.index_builder.evaluation.measured import Comparison, Measured
from recollect.index_builder.evaluation.predictions import GroundTruth
from recollect.index_builder.evaluation.probabilities import DEPTHS, reliability
from recollect.index_builder.evaluation.table import group_cells, in_words, summary
from recollect.trainer.data.split import Split
from recollect.trainer.metrics import ndcg_at, recall_at

PAGE = "report.html"
_DEPTHS_OF_RECALL = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
_HARDEST = 20
# A label needs this number of test texts, because the recall of a label with one text is 0 or 1.
_MIN_TEXTS = 3
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem; color: #1f2937; }
svg { height: auto; width: 100%; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border-bottom: 1px solid #e5e7eb; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
"""


@dataclass(frozen=True)
class QualityPage:
    """The content of a page."""

    predictor: Predictor
    dataset: str
    test: Split
    truth: GroundTruth
    answering: Measured  # with the default options
    sweep: list[Measured]  # with other lambdas, in order of score
    comparison: Comparison | None
    evaluation: Evaluation
    groups: FieldGroups | None = None

    def write(self, folder: Path) -> None:
        """Write the page into an existing folder. An earlier page is replaced."""
        write_text(folder / PAGE, "\n".join(self._lines()) + "\n")

    def _lines(self) -> Iterator[str]:
        version, fields = self.predictor.version, self.answering.fields
        title = f"Quality of {escape(version)}"
        yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>'
        yield f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
        options = ", ".join(f"{name} {value}" for name, value in fields.items())
        yield f"<p>{escape(self.dataset)}: {len(self.test):,} test texts. Options: {escape(options)}.</p>"
        yield "<h2>Metrics</h2>\n<p>Percent; ECE and Brier are fractions. Intervals: bootstrap over the texts."
        if self.comparison is not None:
            yield f"PSP and F1 of both versions use the label frequencies of {escape(version)}."
        yield f"</p>\n<p>{escape(summary(self.evaluation))}</p>"
        yield from self._metrics()
        yield "<h2>Charts</h2>"
        yield self._charts()
        if self.groups is not None:
            measured = self.answering.by(self.groups, self.truth)["groups"]
            yield f"<h2>By {escape(self.groups.field)}</h2>"
            yield f"<p>Percent; {len(measured):,} of {len(self.groups.values):,} values, the most frequent first.</p>"
            yield from _table(measured[0], map(group_cells, measured))
        yield "<h2>Hardest labels</h2>\n<p>Labels that the first ten answers to their test texts rarely contain.</p>"
        yield from _table(("label", "training texts", "test texts", "found", "often first instead"), self._labels())
        yield "<h2>Hardest texts</h2>\n<p>The texts with the lowest nDCG@5, the most certain answers first.</p>"
        yield from _table(("text", "nDCG@5", "true labels", "first five answers"), self._texts())
        yield "</body>\n</html>"

    def _metrics(self) -> Iterator[str]:
        headings, rows = ["metric", self.predictor.version, "95% interval"], []
        if self.comparison is not None:
            headings += [self.comparison.version, "difference", "95% interval"]
        headings.append("meaning")
        for name, metric in self.answering.metrics.items():
            row = [name, f"{metric.value:.3f}", "{:.3f} to {:.3f}".format(*metric.interval)]
            if self.comparison is not None and name in self.comparison.differences:
                gains, other = self.comparison.differences, self.comparison.other.metrics[name]
                low, high = gains["intervals"][name]
                row += [f"{other.value:.3f}", f"{gains[name]:+.3f}", f"{low:+.3f} to {high:+.3f}"]
            rows.append([*row, *[""] * (len(headings) - 1 - len(row)), in_words(name)])
        yield from _table(headings, rows)

    def _charts(self) -> str:
        """The charts as one drawing in SVG."""
        figure = Figure(figsize=(13, 12), layout="constrained")
        places = iter(figure.subplots(3, 2).flat)
        self._by_lambda(next(places))
        self._by_depth(next(places))
        self._by_frequency(next(places), "Recall by label frequency, in percent", ("R@10", "R@100"))
        self._by_frequency(next(places), "Keys that vote for a true label", ("instance_keys", "label_keys"))
        if self.answering.predictions.judged is not None:
            self._reliability(next(places))
        for unused in places:
            unused.remove()
        written = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            figure.savefig(written, format="svg", metadata={"Date": None})
        svg = written.getvalue()
        return svg[svg.index("<svg") :]

    def _by_lambda(self, axes: Axes) -> None:
        for name in ("P@1", "nDCG@5", "PSP@5"):
            lambdas = [measured.setting.lambda_ for measured in self.sweep]
            axes.plot(lambdas, [measured.metrics[name].value for measured in self.sweep], marker="o", label=name)
            low, high = np.transpose([measured.metrics[name].interval for measured in self.sweep])
            axes.fill_between(lambdas, low, high, alpha=0.15)
        axes.set(title="Quality by lambda, in percent", xlabel="lambda: 0 label texts alone, 1 training texts alone")
        axes.legend()

    def _by_depth(self, axes: Axes) -> None:
        versions = {self.predictor.version: self.answering}
        if self.comparison is not None:
            versions[self.comparison.version] = self.comparison.other
        for name, measured in versions.items():
            predictions = measured.predictions
            recalls = [100 * np.mean(recall_at(predictions.hit, predictions.sizes, k)) for k in _DEPTHS_OF_RECALL]
            axes.plot(_DEPTHS_OF_RECALL, recalls, marker="o", label=name)
        axes.set(title="Recall of the first k labels, in percent", xlabel="k", xscale="log", ylim=(0, 100))
        axes.legend()

    def _by_frequency(self, axes: Axes, title: str, names: tuple[str, str]) -> None:
        deciles = self.answering.deciles(self.truth)["deciles"]
        for place, name in zip((-0.2, 0.2), names, strict=True):
            heights = [decile[name] or 0.0 for decile in deciles]
            axes.bar(np.arange(len(deciles)) + place, heights, width=0.4, label=name.replace("_", " "))
        ranges = [f"{decile['least']}-{decile['most']}" for decile in deciles]
        axes.set_xticks(range(len(deciles)), ranges, rotation=30)
        axes.set(title=title, xlabel="training texts of a label (tenths of the labels)")
        axes.legend()

    def _reliability(self, axes: Axes) -> None:
        judged = self.answering.predictions.judged
        assert judged is not None
        axes.plot((0, 1), (0, 1), linestyle="--", color="grey")
        for k in DEPTHS:
            bins = reliability(judged.probabilities, judged.hit, k)
            label = f"first {k}: ECE {bins.expected_error:.3f}"
            axes.plot(bins.probability, bins.true_share, marker="o", label=label)
        axes.set(title="Reliability of the probabilities", xlabel="mean probability", ylabel="share of true labels")
        axes.legend()

    def _labels(self) -> Iterator[list[str]]:
        """The labels with the lowest R@10, and among equals the labels with the most texts without them."""
        first, hit = self.answering.predictions.labels[:, :10], self.answering.predictions.hit[:, :10]
        pairs = self.truth.relevance.tocsc()
        totals = np.diff(pairs.indptr)
        counts = np.bincount(first[hit], minlength=self.truth.labels)
        candidates = np.flatnonzero((totals >= _MIN_TEXTS) & (counts < totals))
        order = np.lexsort((-totals[candidates], counts[candidates] / totals[candidates]))
        for label in candidates[order][:_HARDEST].tolist():
            texts = pairs.indices[pairs.indptr[label] : pairs.indptr[label + 1]]
            missed = texts[~(first[texts] == label).any(axis=1)]
            instead = Counter(other for other in first[missed, 0].tolist() if other >= 0).most_common(1)
            share = f"{counts[label] / totals[label]:.0%}"
            numbers = f"{self.truth.label_counts[label]:,}", f"{totals[label]:,}", share
            yield [self._name(label), *numbers, self._name(instead[0][0]) if instead else "-"]

    def _texts(self) -> Iterator[list[str]]:
        predictions = self.answering.predictions
        ndcg = 100 * ndcg_at(predictions.hit, predictions.sizes, 5)
        wrong = np.flatnonzero((predictions.sizes > 0) & (ndcg < 100))
        for row in wrong[np.lexsort((-predictions.first_scores[wrong], ndcg[wrong]))][:_HARDEST].tolist():
            true = self.truth.relevance[[row]].indices.tolist()
            answers = [label for label in predictions.labels[row, :5].tolist() if label >= 0]
            names = ("; ".join(self._name(label) for label in labels) for labels in (true, answers))
            yield [self.test.entries.texts[row].as_py(), f"{ndcg[row]:.2f}", *names]

    def _name(self, label: int) -> str:
        labels = self.predictor.bundle.labels
        return labels.texts[label] if label < len(labels) else "(a label that the version does not have)"


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield "<table>\n<tr>" + "".join(f"<th>{escape(heading)}</th>" for heading in headings) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table>"
