"""The table that `recollect evaluate` prints: aligned lines with short headings, so that they fit a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recollect.index_builder.evaluation.evaluate import Evaluation

_SETTINGS = ("lambda", "temperature", "top_b", "word_weight")
# Metrics that are fractions; all others are in percent.
_FRACTIONS = ("ECE@1", "ECE@5", "Brier")
_SHORT = {
    "temperature": "tau",
    "top_b": "b",
    "word_weight": "words",
    "F1@5 extreme tail": "xtail",
    "F1@5 torso": "torso",
    "F1@5 tail": "tail",
    "F1@5 unseen": "unseen",
    "instance_keys": "by instances",
    "label_keys": "by labels",
    "label_key_share": "labels, %",
}


def format_table(evaluation: Evaluation, intervals: bool = False) -> Iterator[str]:
    """Format the result rows.

    Args:
        evaluation: The result.
        intervals: Whether each row is followed by the ends of its 95% confidence intervals, and the table by the gains
            of the ranker with theirs.
    """
    rows = evaluation.rows
    if intervals:
        gains = [each | {"order": "gain"} for each in evaluation.differences]
        rows = [line for row in (*rows, *gains) for line in (row, *_ends(row))]
    names = list(dict.fromkeys(name for row in rows for name in row if name != "intervals"))
    cells = [[_SHORT.get(name, name) for name in names]]
    cells += [
        [_format_cell(name, row.get(name, "" if "95%" in row["order"] else None)) for name in names] for row in rows
    ]
    yield from _align(cells)


def format_deciles(evaluation: Evaluation) -> Iterator[str]:
    """Format the metrics by label frequency: for each setting, one line for each decile."""
    for setting in evaluation.deciles:
        names = [name for name in setting if name != "deciles"]
        yield ""
        yield "by label frequency: " + ", ".join(f"{name} {_format_cell(name, setting[name])}" for name in names)
        rows = setting["deciles"]
        counts = ("decile", "labels", "least", "most", "true")
        yield from _align(
            [
                [_SHORT.get(name, name) for name in rows[0]],
                *(
                    [str(row[name]) if name in counts else _format_cell(name, row[name]) for name in row]
                    for row in rows
                ),
            ]
        )


def _align(cells: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _ends(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lower and the upper ends of the intervals of a row, as rows."""
    for place, heading in enumerate(("95% from", "95% to")):
        yield {"order": heading} | {name: ends[place] for name, ends in row["intervals"].items()}


def _format_cell(name: str, value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name in (*_SETTINGS, "best k"):
        return f"{value:g}"
    return f"{value:.3f}" if name in _FRACTIONS else f"{value:.2f}"
