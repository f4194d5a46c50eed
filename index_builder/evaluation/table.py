"""The output of `recollect evaluate`: a table that fits a terminal, with its columns in words; CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from recollect.core.system.console import aligned
from recollect.index_builder.evaluation.evaluate import Evaluation
from recollect.trainer.metrics import SEGMENTS

# Maximum number of characters of a line without `--wide`.
_WIDTH = 100
# Metrics without `--wide`. If they do not fit, the last ones are left out.
_SHOWN = ("P@1", "P@5", "nDCG@5", "R@10", "R@100", "PSP@5", "coverage@5")
# The columns that state a setting, with their headings.
_SETTINGS = {
    "lambda": "lambda",
    "temperature": "tau",
    "top_b": "b",
    "word_weight": "words",
    "order": "order",
    "tail_weight": "tail",
    "memories": "memories",
}
# The columns in words; `_kind` turns the name of a column into a key.
_WORDS = {
    "lambda": "share of the votes that training texts have; label texts have the rest",
    "temperature": "temperature of the softmax over the keys",
    "top_b": "number of keys that vote",
    "word_weight": "share of the votes of keys that share words with the text",
    "order": "labels are in order of votes (score), of probability, or with rare ones moved up (macro)",
    "tail_weight": "how far macro moves labels with few training texts up",
    "memories": "one softmax over both kinds of keys (joint), or one over each kind (separate)",
    "P@k": "share of true labels among the first k labels",
    "nDCG@k": "like P@k, but earlier labels count more; 100 if the first labels are all true labels",
    "R@k": "share of the true labels that are among the first k labels",
    "PSP@k": "like P@k, but rare labels count more; in percent of the best possible value",
    "macro F1@k": "mean F1 of all labels of the test texts; a text gets its first k labels",
    "coverage@k": "share of the labels of all texts that are found at least once in the first k labels",
    "F1@k": "mean F1 of the labels with this number of training texts; a text gets its first k labels",
    "ECE@k": "calibration error of the probabilities of the first k labels, from 0 to 1",
    "Brier": "squared errors of the probabilities of a text, summed over its labels",
    "F1 assigned": "F1 of a text that gets the labels that the version assigns",
    "F1 best k": "F1 of a text that gets its first k labels, for the best k",
    "best k": "the k of F1 best k",
}
# Metrics of a comparison with another version.
_COMPARED = ("P@1", "P@5", "nDCG@5", "PSP@5", "R@100")
# Metrics that are fractions; all others are in percent.
_FRACTIONS = ("ECE@1", "ECE@5", "Brier")
_DECILES = {
    "deciles": "tenths of the labels, the rarest first",
    "deciles_by_pairs": "tenths of the training pairs, the most frequent labels first",
}
# Maximum number of characters of a value of a field.
_LONGEST_VALUE = 60
_SHORT = {"instance_keys": "by instances", "label_keys": "by labels", "label_key_share": "labels, %"}


class _Row(NamedTuple):
    """A line of the table: its name, and its settings and metrics by their names in JSON."""

    name: str
    values: dict[str, Any]


def format_evaluation(evaluation: Evaluation, intervals: bool, deciles: bool, wide: bool) -> Iterator[str]:
    """Format a result: the version, the table, the coverage, the comparison, and on request deciles and groups."""
    yield f"version {evaluation.version}, {evaluation.queries:,} test texts, in percent"
    yield from format_table(evaluation, intervals, wide)
    if evaluation.coverage:
        yield ""
        yield from _format_coverage(evaluation.coverage)
    if evaluation.comparison is not None:
        yield ""
        yield from _format_comparison(evaluation.version, evaluation.comparison)
    if deciles:
        yield from _format_deciles(evaluation)
    for setting in evaluation.by:
        yield from _format_groups(setting)


def format_table(evaluation: Evaluation, intervals: bool = False, wide: bool = False) -> Iterator[str]:
    """Format the rows, the chosen setting first, then the columns in words and a summary.

    A setting that is the same in all rows is above the table. On request, lines have the ends of the 95% confidence
    intervals and the gains of the ranker. A line has at most 100 characters, or all columns.
    """
    rows = _rows(evaluation, intervals)
    names, left_out = _columns(rows, wide)
    same = [name for name in _SETTINGS if name in evaluation.chosen and name not in names]
    if same:
        yield ", ".join(f"{_SETTINGS[name]} {_format_cell(name, evaluation.chosen[name])}" for name in same)
    yield ""
    yield from aligned(_cells(rows, names), str.rjust)
    yield ""
    kinds = dict.fromkeys(_kind(name) for name in [*same, *names])
    yield from aligned([[_SETTINGS.get(kind, kind), in_words(kind)] for kind in kinds])
    if left_out:
        yield from textwrap.wrap(f"--wide adds {', '.join(map(_heading, left_out))}", _WIDTH)
    yield ""
    yield from textwrap.wrap(summary(evaluation), _WIDTH)


def format_csv(evaluation: Evaluation, intervals: bool) -> list[str]:
    """Format all rows and columns as CSV, with the names of JSON; on request, also the ends of the intervals."""
    rows = _rows(evaluation, intervals=False)
    names, _ = _columns(rows, wide=True, settings=_SETTINGS)
    ends = [name for name in names if name in evaluation.chosen["intervals"]] if intervals else []
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["row", *names, *(f"{name} {end}" for name in ends for end in ("from", "to"))])
    for name, values in rows:
        intervals_of = values.get("intervals", {})
        bounds = (bound for metric in ends for bound in intervals_of.get(metric, (None, None)))
        writer.writerow([name, *map(values.get, names), *bounds])
    return written.getvalue().splitlines()


def format_latex(evaluation: Evaluation, intervals: bool, wide: bool) -> Iterator[str]:
    """Format the table as a `tabular` of LaTeX, with the rules of the package booktabs."""
    rows = _rows(evaluation, intervals)
    names, _ = _columns(rows, wide)
    headings, *lines = (" & ".join(map(_escaped, cells)) + r" \\" for cells in _cells(rows, names))
    yield f"% version {evaluation.version}, {evaluation.queries} test texts, in percent; needs \\usepackage{{booktabs}}"
    yield from (rf"\begin{{tabular}}{{l{'r' * len(names)}}}", r"\toprule", headings, r"\midrule")
    yield from (*lines, r"\bottomrule", r"\end{tabular}")


def summary(evaluation: Evaluation) -> str:
    """The limit of P@5 for these texts, and the P@5 of the version, of its votes, and of the most frequent labels."""
    texts, chosen = evaluation.texts, evaluation.chosen
    votes = "" if evaluation.votes is None else f", the votes alone {evaluation.votes['P@5']:.2f}"
    return (
        f"A test text has {texts['labels']:.2f} true labels on average, and at most {texts['most']:,}, so the best "
        f"possible P@5 is {texts['P@5']:.2f}: the version reaches {chosen['P@5']:.2f}{votes}, and the 5 labels with "
        f"the most training texts, as the answer to every text, {evaluation.popularity['P@5']:.2f}."
    )


def in_words(name: str) -> str:
    """A setting or a metric in words."""
    return _WORDS.get(_kind(name), "")


def _kind(name: str) -> str:
    """A metric without its depth and its segment, for example P@k."""
    return re.sub(r"@\d+( .*)?$", "@k", name)


def _heading(name: str) -> str:
    """The heading of a column. A segment of labels is the range of their numbers of training texts."""
    metric, _, segment = name.partition(" ")
    if segment not in SEGMENTS:
        return _SETTINGS.get(name, name)
    more, limit = SEGMENTS[segment]
    if limit <= 0:
        return f"{metric} 0"
    return f"{metric} {more + 1:.0f}+" if math.isinf(limit) else f"{metric} {more + 1:.0f}-{limit:.0f}"


def _rows(evaluation: Evaluation, intervals: bool) -> list[_Row]:
    """The lines of the table: the chosen setting, its votes, the other settings, and the most frequent labels."""
    rows = [_Row("chosen", evaluation.chosen)]
    if evaluation.votes is not None:
        rows.append(_Row("votes alone", evaluation.votes))
    rows += [_Row("", row) for row in evaluation.rows if row not in (evaluation.chosen, evaluation.votes)]
    if intervals:
        gains = [_Row(f"gain, {row['order'].split()[0]}", row | {"order": ""}) for row in evaluation.differences]
        rows = [line for row in (*rows, *gains) for line in (row, *_ends(row))]
    return [*rows, _Row("frequent labels", evaluation.popularity)]


def _ends(row: _Row) -> Iterator[_Row]:
    """The lower and the upper ends of the intervals of a row, as rows."""
    for place, name in enumerate(("95% from", "95% to")):
        yield _Row(name, {metric: ends[place] for metric, ends in row.values["intervals"].items()})


def _columns(rows: Sequence[_Row], wide: bool, settings: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """The names of the columns, and of the metrics that are left out.

    A setting is a column if it differs between rows, or is named here.
    """
    given = dict.fromkeys(name for row in rows for name in row.values if name != "intervals")
    found = {name: {row.values[name] for row in rows if row.values.get(name, "") != ""} for name in _SETTINGS}
    shown = [name for name in _SETTINGS if len(found[name]) > (0 if name in settings else 1)]
    metrics = [name for name in given if name not in _SETTINGS]
    kept = metrics if wide else [name for name in _SHOWN if name in metrics]
    while not wide and len(max(aligned(_cells(rows, [*shown, *kept])), key=len)) > _WIDTH:
        kept.pop()
    return [*shown, *kept], [name for name in metrics if name not in kept]


def _cells(rows: Sequence[_Row], names: Sequence[str]) -> list[list[str]]:
    """The texts in the cells of the table, with its headings. All cells of the first column have one width."""
    width = max(len(row.name) for row in rows)
    cells = [
        [row.name.ljust(width), *(_format_cell(name, row.values.get(name, _absent(row, name))) for name in names)]
        for row in rows
    ]
    return [[" " * width, *map(_heading, names)], *cells]


def _absent(row: _Row, name: str) -> str | None:
    """The content of a cell that a row lacks: empty for a setting and in the rows of an interval."""
    return "" if name in _SETTINGS or row.name.startswith("95%") else None


def _escaped(cell: str) -> str:
    """A cell in LaTeX."""
    return re.sub(r"([%&#_$])", r"\\\1", cell.strip())


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


def _format_cell(name: str, value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name in (*_SETTINGS, "best k"):
        return f"{value:g}"
    return f"{value:.3f}" if name in _FRACTIONS else f"{value:.2f}"
