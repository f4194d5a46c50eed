"""The output of `recollect evaluate`: aligned lines with short headings, so that they fit a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from recollect.core.system.console import aligned
from recollect.index_builder.evaluation.evaluate import Evaluation

# Metrics of a comparison with another version.
_COMPARED = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@100")
_SETTINGS = ("lambda", "temperature", "top_b", "word_weight")
# Metrics that are fractions; all others are in percent.
_FRACTIONS = ("ECE@1", "ECE@5", "Brier")
_DECILES = {
    "deciles": "tenths of the labels, the rarest first",
    "deciles_by_pairs": "tenths of the training pairs, the most frequent labels first",
}
# Maximum number of characters of a value of a field.
_LONGEST_VALUE = 60
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


def format_evaluation(evaluation: Evaluation, intervals: bool, deciles: bool) -> Iterator[str]:
    """Format a whole result: the version, the rows, the coverage, the comparison, and deciles and groups on request."""
    yield f"version {evaluation.version}, {evaluation.queries:,} queries, in percent"
    yield from format_table(evaluation, intervals)
    yield from _format_coverage(evaluation.coverage)
    if evaluation.comparison is not None:
        yield from _format_comparison(evaluation.version, evaluation.comparison)
    if deciles:
        yield from _format_deciles(evaluation)
    for setting in evaluation.by:
        yield from _format_groups(setting)


def format_table(evaluation: Evaluation, intervals: bool = False) -> Iterator[str]:
    """Format the result rows, on request with the ends of the 95% confidence intervals, and the gains of the ranker."""
    rows = evaluation.rows
    if intervals:
        gains = [row | {"order": f"gain, {row['order'].split()[0]}"} for row in evaluation.differences]
        rows = [line for row in (*rows, *gains) for line in (row, *_ends(row))]
    names = list(dict.fromkeys(name for row in rows for name in row if name != "intervals"))
    cells = [[_SHORT.get(name, name) for name in names]]
    cells += [
        [_format_cell(name, row.get(name, "" if "95%" in row["order"] else None)) for name in names] for row in rows
    ]
    yield from aligned(cells, str.rjust)


def _format_deciles(evaluation: Evaluation) -> Iterator[str]:
    """Format the metrics by label frequency: for each setting and way to form deciles, one line for each decile."""
    counts = ("decile", "labels", "least", "most", "true")
    for setting, (name, heading) in itertools.product(evaluation.deciles, _DECILES.items()):
        rows = setting[name]
        yield ""
        yield f"{heading}: {_format_options(setting, _DECILES)}"
        cells = [[str(row[name]) if name in counts else _format_cell(name, row[name]) for name in row] for row in rows]
        yield from aligned([[_SHORT.get(name, name) for name in rows[0]], *cells], str.rjust)


def _format_groups(setting: dict[str, Any]) -> Iterator[str]:
    """Format the metrics by the values of a field with one setting: one line for each value."""
    rows, options = setting["groups"], _format_options(setting, ("field", "values", "groups"))
    yield ""
    yield f"{setting['field']}, {len(rows):,} of {setting['values']:,} values, the most frequent first: {options}"
    yield from aligned([[*rows[0]], *map(group_cells, rows)], str.rjust)


def group_cells(row: dict[str, Any]) -> list[str]:
    """The texts in the cells of a row that `FieldGroups.measure` returns."""
    value, *others = row
    shown = (f"{row[name]:,}" if type(row[name]) is int else _format_cell(name, row[name]) for name in others)
    return [str(row[value])[:_LONGEST_VALUE], *shown]


def _format_options(setting: dict[str, Any], others: Collection[str]) -> str:
    """The options of a setting; `others` are the names of its results."""
    return ", ".join(f"{name} {_format_cell(name, value)}" for name, value in setting.items() if name not in others)


def _format_coverage(coverage: Sequence[dict[str, Any]]) -> Iterator[str]:
    for statement in coverage:
        yield (
            f"probability >= {statement['probability']:.4f}: {statement['found']:.1%} of the true labels (expected "
            f"{statement['share']:.0%}), among {statement['labels']:.1f} labels a text"
        )


def _format_comparison(version: str, comparison: dict[str, Any]) -> Iterator[str]:
    """Format the differences of the most important metrics, from `Comparison.as_json`."""
    gains, row = comparison["differences"], comparison["row"]
    yield (
        f"compared with {comparison['version']}, with its default options, and the label frequencies of {version} in "
        "PSP and F1:"
    )
    for name in _COMPARED:
        low, high = gains["intervals"][name]
        yield f"  {name:8} {row[name]:6.2f}, difference {gains[name]:+.2f} (95% interval {low:+.2f} to {high:+.2f})"


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
