"""The page of the measured indexes: recall against search time, for label keys and for instance keys."""

from __future__ import annotations

import itertools
from pathlib import Path

from recollect.service.bundle.manifest import Point
from recollect.service.files import write_text
from recollect.trainer.report.charts import Line, line_chart
from recollect.trainer.report.page import Cell, Chart, Section, Table, html_page
from recollect.trainer.report.scale import Axis

_HEADINGS = ["index", "keys", "effort", "refined", "recall", "milliseconds", "bytes a key"]
_TEXT = (
    "Each point is an index with one search effort: a higher effort finds more of the exact nearest keys, and takes "
    "longer. A line is one kind of index; some kinds are measured on a sample of the keys only. The chosen point has a "
    "marker of its own."
)


def write_index_plots(
    folder: Path, points: dict[str, Point], curves: dict[str, list[Point]], top_b: int, recall_target: float
) -> None:
    """Write the page `report.html`, and its charts as `labels.svg` and `instances.svg`.

    Args:
        folder: An existing folder.
        points: The chosen measurement of the index, by `labels` and `instances`.
        curves: All measurements, by `labels` and `instances`.
        top_b: Number of keys that each search returned.
        recall_target: The recall that the index must reach.
    """
    charts = {part: _chart(part, point, curves[part], top_b, recall_target) for part, point in points.items()}
    for part, chart in charts.items():
        write_text(folder / f"{part}.svg", chart.svg)
    facts = {f"index of the {part}": f"{point.factory}, recall {point.recall:.4f}" for part, point in points.items()}
    facts |= {"target of the recall": f"{recall_target:g}", "keys of a search": f"{top_b:,}"}
    section = Section("Recall and search time", _TEXT, list(charts.values()))
    write_text(folder / "report.html", html_page("Measured indexes", facts, [section]))


def _chart(part: str, chosen: Point, points: list[Point], top_b: int, recall_target: float) -> Chart:
    lines = []
    for (factory, keys), family in itertools.groupby(points, key=lambda point: (point.factory, point.keys)):
        line = sorted((point.milliseconds, point.recall) for point in family)
        lines.append(Line(f"{factory}, {keys:,} keys", line))
    times = [point.milliseconds for point in (*points, chosen)]
    target = [(min(times), recall_target), (max(times), recall_target)]
    lines.append(Line(f"target: {recall_target:g}", target, marked=False, reference=True))
    name = f"chosen: {chosen.factory}, effort {chosen.effort}, {chosen.bytes_per_key:,.0f} bytes a key"
    lines.append(Line(name, [(chosen.milliseconds, chosen.recall)], line=False))
    title = f"Indexes of the {part}: {chosen.keys:,} keys"
    x = Axis("search time of a single query on one thread, in milliseconds", log=True)
    y = Axis(f"recall of the exact top {top_b} keys")
    return Chart(line_chart(title, lines, x, y), Table(title, _HEADINGS, [_row(point, chosen) for point in points]))


def _row(point: Point, chosen: Point) -> list[Cell]:
    figures = (
        f"{point.keys:,}",
        f"{point.effort:,}",
        f"{point.refine:g}",
        f"{point.recall:.4f}",
        f"{point.milliseconds:.3f}",
        f"{point.bytes_per_key:,.0f}",
    )
    return [Cell(point.factory, point == chosen), *(Cell(figure, point == chosen) for figure in figures)]
