"""The page of a training: its loss and its validation over time, from the log of the run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recollect.service.files import write_text
from recollect.trainer.report.charts import Line, line_chart
from recollect.trainer.report.page import Cell, Chart, Section, Table, html_page
from recollect.trainer.report.scale import Axis

PAGE = "report.html"
_SCORE = "validation_ndcg_5"
# Longest table. A long training logs thousands of lines, of which evenly spaced ones are shown.
_MOST_ROWS = 60


def write_training_page(folder: Path) -> None:
    """Write `report.html` into a run folder, from `metrics.jsonl`. An earlier page is replaced."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "loss" in line]
    validations = [line for line in lines if _SCORE in line and "seconds" in line]
    sections = [*_validation(validations), *_progress(steps)]
    write_text(folder / PAGE, html_page(f"Training of {folder.resolve().name}", _facts(steps, validations), sections))


def _facts(steps: list[dict[str, Any]], validations: list[dict[str, Any]]) -> dict[str, str]:
    facts = {}
    if validations:
        best = max(validations, key=lambda line: line[_SCORE])
        facts["best nDCG@5"] = f"{best[_SCORE]:.2f}"
        facts["reached after"] = f"{best['step']:,} steps, {best['seconds']:,.0f} seconds"
        facts["without training"] = f"{validations[0][_SCORE]:.2f}" if validations[0]["step"] == 0 else "-"
        facts["training time"] = f"{validations[-1]['seconds']:,.0f} seconds"
    if steps:
        facts["steps"] = f"{steps[-1]['step']:,}"
        facts["last loss"] = f"{steps[-1]['loss']:.4g}"
    return facts


def _validation(lines: list[dict[str, Any]]) -> list[Section]:
    """The section of the validation; none without validations."""
    if not lines:
        return []
    best = max(lines, key=lambda line: line[_SCORE])
    rows = [
        [
            Cell(f"{line['step']:,}"),
            Cell(f"{line['seconds']:,.1f}"),
            Cell(f"{line[_SCORE]:.2f}", best=line is best),
        ]
        for line in lines
    ]
    table = Table("Validation", ["step", "seconds", "nDCG@5"], rows)
    text = (
        "nDCG@5 on held-out training texts, in percent, with the best of a few values of τ and λ. The checkpoint is "
        "that of the best validation. The seconds are training time."
    )
    charts = [
        _chart("nDCG@5 over training time", lines, ("seconds", "training time in seconds"), (_SCORE, "percent"), table),
        _chart("nDCG@5 over steps", lines, ("step", "step"), (_SCORE, "percent"), None),
    ]
    return [Section("Validation", text, charts)]


def _progress(lines: list[dict[str, Any]]) -> list[Section]:
    """The section of the loss and the speed; none without finished steps."""
    if not lines:
        return []
    shown = lines[:: -(-len(lines) // _MOST_ROWS)]
    rows = [
        [
            Cell(f"{line['step']:,}"),
            Cell(f"{line['loss']:.4g}"),
            Cell(format(line["learning_rate"], ".3g") if "learning_rate" in line else "-"),
            Cell(format(line["examples_per_second"], ",.0f") if "examples_per_second" in line else "-"),
        ]
        for line in shown
    ]
    table = Table("Loss and speed", ["step", "loss", "learning rate", "examples/s"], rows)
    text = "Each point is a line of metrics.jsonl: the mean loss, and the speed, since the previous line."
    charts = [
        _chart("Loss", lines, ("step", "step"), ("loss", "mean loss"), table),
        _chart("Speed", lines, ("step", "step"), ("examples_per_second", "examples/s"), None),
    ]
    return [Section("Loss and speed", text, charts)]


def _chart(
    title: str, lines: Iterable[dict[str, Any]], x: tuple[str, str], y: tuple[str, str], table: Table | None
) -> Chart:
    """A line of a field over another one; each is the name of the field and the title of its axis."""
    points = [(line[x[0]], line[y[0]]) for line in lines if y[0] in line]
    line = Line(title, points, marked=len(points) <= _MOST_ROWS)
    return Chart(line_chart(title, [line], Axis(x[1]), Axis(y[1])), table)
