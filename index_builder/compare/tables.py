"""Tables of the report. The best cell of each column is marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recollect.index_builder.compare.results import ContestantResults, RunResult
from recollect.index_builder.compare.significance import PairedTest
from recollect.trainer.metrics import SEGMENTS
from recollect.trainer.report.page import Cell, Table

_METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100", *(f"F1@5 {segment}" for segment in SEGMENTS))
# Headings of the tuned settings.
_TUNED_SETTINGS = {"λ": "lambda", "τ": "temperature", "b": "top_b", "α": "label_key_alpha"}
_MEBIBYTE = 2**20


@dataclass(frozen=True)
class _Column:
    """A column of a table: one figure for each contestant.

    Attributes:
        heading: Heading of the column.
        figure: Reads the figure of one run; None if the run has no such figure.
        form: Format of the numbers.
        best: Picks the best number; None if the column has no best number.
    """

    heading: str
    figure: Callable[[RunResult], float | None]
    form: str = ",.2f"
    best: Callable[[list[float]], float] | None = max

    def cells(self, results: Sequence[ContestantResults]) -> list[Cell]:
        means = [each.mean(self.figure) for each in results]
        known = [mean for mean in means if mean is not None]
        best = self._format(self.best(known)) if self.best and len(known) > 1 else None
        return [
            Cell(self._text(each), mean is not None and self._format(mean) == best)
            for each, mean in zip(results, means, strict=True)
        ]

    def _text(self, results: ContestantResults) -> str:
        mean_and_deviation = results.mean_and_deviation(self.figure)
        if mean_and_deviation is None:
            return "-"
        if self.best is None:  # the column is a tuned setting: show the value of every seed
            return " / ".join(self._format(self.figure(run) or 0) for run in results.runs)
        mean, deviation = mean_and_deviation
        spread = f" ± {deviation:{self.form.lstrip('+')}}" if len(results.runs) > 1 else ""
        return self._format(mean) + spread

    def _format(self, number: float) -> str:
        return format(number, self.form)


def quality_table(results: Sequence[ContestantResults]) -> Table:
    """The table of quality with the tuned settings, of training cost, and of the tuned settings themselves."""
    columns = [
        *(_Column(metric, _tuned(metric)) for metric in _METRICS),
        _Column("seconds", _measured("seconds"), ",.1f", min),
        _Column("peak MiB", _measured("peak_memory_bytes", _MEBIBYTE), ",.0f", min),
        _Column("parameters", _measured("trainable_parameters"), ",.0f", min),
        *(_Column(heading, _setting(name), "g", None) for heading, name in _TUNED_SETTINGS.items()),
    ]
    caption = (
        "Quality on the test split, in percent, with the whole memory and the tuned settings; and the training cost"
    )
    return _table(caption, results, columns)


def plain_table(results: Sequence[ContestantResults]) -> Table:
    """The table of quality with the label keys alone, and of the gain from the whole memory."""
    columns = [_Column(metric, _plain(metric)) for metric in _METRICS]
    views = sorted({view for each in results for run in each.runs for view in run.quality.views})
    columns += [_Column(f"nDCG@5, {view} alone", _view(view)) for view in views]
    columns.append(_Column("memory adds to nDCG@5", _difference(_tuned("nDCG@5"), _plain("nDCG@5")), "+,.2f"))
    caption = "Quality on the test split, in percent, with the label keys alone"
    return _table(caption, results, columns)


def ranked_table(results: Sequence[ContestantResults]) -> Table:
    """The table of quality in the order of the rankers, and of their gain."""
    columns = [_Column(metric, _ranked(metric)) for metric in _METRICS]
    columns.append(_Column("ranker adds to nDCG@5", _difference(_ranked("nDCG@5"), _tuned("nDCG@5")), "+,.2f"))
    caption = "Quality on the test split, in percent, in order of probability"
    return _table(caption, results, columns)


def significance_table(first: str, second: str, tests: Sequence[PairedTest]) -> Table:
    """The table of differences between two contestants, with confidence intervals and paired t-tests."""
    rows = [
        [
            Cell(test.metric),
            Cell(f"{test.difference:+.2f}"),
            Cell("{:+.2f} to {:+.2f}".format(*test.interval)),
            Cell("-" if test.t is None else f"{test.t:.2f}"),
            Cell("-" if test.p is None else f"{test.p:.2g}"),
            Cell("yes" if test.significant else "no"),
        ]
        for test in tests
    ]
    caption = (
        f"Differences over the test queries: {first} minus {second}, in points, with a bootstrap and a paired t-test"
    )
    return Table(caption, ["metric", "difference", "95% interval", "t", "p", "significant at .05"], rows)


def _table(caption: str, results: Sequence[ContestantResults], columns: Sequence[_Column]) -> Table:
    cells = zip(*(column.cells(results) for column in columns), strict=True)
    rows = [[Cell(each.name), *row] for each, row in zip(results, cells, strict=True)]
    return Table(caption, ["method", *(column.heading for column in columns)], rows)


def _tuned(metric: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.quality.tuned[metric]


def _view(name: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.quality.views.get(name, {}).get("nDCG@5")


def _plain(metric: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.quality.plain[metric]


def _ranked(metric: str) -> Callable[[RunResult], float | None]:
    return lambda run: None if run.quality.ranked is None else run.quality.ranked[metric]


def _difference(
    figure: Callable[[RunResult], float | None], less: Callable[[RunResult], float | None]
) -> Callable[[RunResult], float | None]:
    def difference(run: RunResult) -> float | None:
        first, second = figure(run), less(run)
        return None if first is None or second is None else first - second

    return difference


def _setting(name: str) -> Callable[[RunResult], float | None]:
    return lambda run: run.quality.answering[name]


def _measured(name: str, unit: float = 1) -> Callable[[RunResult], float | None]:
    def figure(run: RunResult) -> float | None:
        return run.measured[name] / unit if name in run.measured else None

    return figure
