"""Plots of what was measured: an SVG for each part of the memory, recall over time, one line a family of indexes."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from index_builder.svg import svg
from service.bundle.manifest import Point
from trainer.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(
    folder: Path, points: dict[str, Point], curves: dict[str, list[Point]], top_b: int, recall_target: float
) -> None:
    """Write `labels.svg` and `instances.svg`.

    Args:
        folder: Where to; it exists.
        points: The point at which each part's index is searched.
        curves: All points between which it was chosen.
        top_b: Keys that each query asked for.
        recall_target: Share of them that was to be found.
    """
    for part, point in points.items():
        draw = partial(_plot, part=part, chosen=point, points=curves[part], top_b=top_b, recall_target=recall_target)
        write_text(folder / f"{part}.svg", svg(draw, height=6, columns=2))


def _plot(figure: Figure, part: str, chosen: Point, points: list[Point], top_b: int, recall_target: float) -> None:
    axes = figure.add_subplot()
    families = itertools.groupby(points, key=lambda point: (point.factory, point.keys))
    for (factory, keys), family in families:
        line = [(point.milliseconds, point.recall) for point in family]
        axes.plot(*zip(*sorted(line), strict=True), marker=".", label=f"{factory}, {keys:,} keys")
    axes.plot(
        chosen.milliseconds,
        chosen.recall,
        marker="*",
        markersize=16,
        linestyle="none",
        color="black",
        label=f"chosen: {chosen.factory}, effort {chosen.effort}, {chosen.bytes_per_key:,.0f} bytes a key",
    )
    axes.axhline(recall_target, color="grey", linestyle="dashed", label=f"target: {recall_target:g}")
    axes.set_xscale("log")
    axes.set_title(f"Indexes of the {part}: {chosen.keys:,} keys")
    axes.set_xlabel("time of a query alone on one thread, in milliseconds")
    axes.set_ylabel(f"recall, as a share of the exact top {top_b}")
    axes.grid(alpha=0.3)
