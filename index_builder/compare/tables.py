"""The comparison's tables: what stands in each cell, and which cells hold the best of their column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from index_builder.compare.significance import PairedTest
from index_builder.compare.standing import Result, Standing
from trainer.metrics import SEGMENTS

_METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@100", *(f"F1@5 {segment}" for segment in SEGMENTS))
# What tuning chooses.
_CHOSEN = {"λ": "lambda", "τ": "temperature", "b": "top_b", "α": "label_key_alpha"}
_MEBIBYTE = 2**20


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under headings; the first cell of a row is its own heading."""

    caption: str
    headings: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class _Column:
    """A figure of each contestant, and how it is told.

    Attributes:
        heading: Above it.
        figure: Of one run; None where it has none.
        form: How a number is written.
        best: Which of the column's numbers is the best, if any is.
    """

    heading: str
    figure: Callable[[Result], float | None]
    form: str = ",.2f"
    best: Callable[[list[float]], float] | None = max

    def cells(self, standings: Sequence[Standing]) -> list[Cell]:
        means = [standing.mean(self.figure) for standing in standings]
        known = [mean for mean in means if mean is not None]
        best = self._written(self.best(known)) if self.best and len(known) > 1 else None
        return [
            Cell(self._told(standing), mean is not None and self._written(mean) == best)
            for standing, mean in zip(standings, means, strict=True)
        ]

    def _told(self, standing: Standing) -> str:
        spread = standing.spread(self.figure)
        if spread is None:
            return "-"
        if self.best is None:  # chosen, not measured: seeds choose each their own
            return " / ".join(self._written(self.figure(result) or 0) for result in standing.results)
        mean, deviation = map(self._written, spread)
        return f"{mean} ± {deviation}" if len(standing.results) > 1 else mean

    def _written(self, number: float) -> str:
        return format(number, self.form)


def quality_table(standings: Sequence[Standing]) -> Table:
    """Quality as tuned, cost, and what tuning chose."""
    columns = [
        *(_Column(metric, _tuned(metric)) for metric in _METRICS),
        _Column("seconds", _measured("seconds"), ",.1f", min),
        _Column("peak MiB", _measured("peak_memory_bytes", _MEBIBYTE), ",.0f", min),
        _Column("parameters", _measured("trainable_parameters"), ",.0f", min),
        *(_Column(heading, _answering(name), "g", None) for heading, name in _CHOSEN.items()),
    ]
    caption = "Quality on the test split, in percent, with the whole memory and as tuned; what the training cost"
    return _table(caption, standings, columns)


def plain_table(standings: Sequence[Standing]) -> Table:
    """Quality of the label keys alone, and what the whole memory adds to it."""

    def gained(result: Result) -> float | None:
        tuned, plain = result.quality.tuned["nDCG@5"], result.quality.plain["nDCG@5"]
        return None if tuned is None or plain is None else tuned - plain

    columns = [_Column(metric, _plain(metric)) for metric in _METRICS]
    columns.append(_Column("memory adds to nDCG@5", gained, "+,.2f"))
    caption = "Quality on the test split, in percent, by the label keys alone"
    return _table(caption, standings, columns)


def significance_table(first: str, second: str, tests: Sequence[PairedTest]) -> Table:
    """The paired t-tests of two contestants."""
    rows = [
        [
            Cell(test.metric),
            Cell(f"{test.difference:+.2f}"),
            Cell("-" if test.t is None else f"{test.t:.2f}"),
            Cell("-" if test.p is None else f"{test.p:.2g}"),
            Cell("yes" if test.significant else "no"),
        ]
        for test in tests
    ]
    caption = f"Paired t-test over the test queries: {first} minus {second}, in points"
    return Table(caption, ["metric", "difference", "t", "p", "significant at .05"], rows)


def _table(caption: str, standings: Sequence[Standing], columns: Sequence[_Column]) -> Table:
    cells = zip(*(column.cells(standings) for column in columns), strict=True)
    rows = [[Cell(standing.name), *row] for standing, row in zip(standings, cells, strict=True)]
    return Table(caption, ["method", *(column.heading for column in columns)], rows)


def _tuned(metric: str) -> Callable[[Result], float | None]:
    return lambda result: result.quality.tuned[metric]


def _plain(metric: str) -> Callable[[Result], float | None]:
    return lambda result: result.quality.plain[metric]


def _answering(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.quality.answering[name]


def _measured(name: str, unit: float = 1) -> Callable[[Result], float | None]:
    def figure(result: Result) -> float | None:
        return result.measured[name] / unit if name in result.measured else None

    return figure
