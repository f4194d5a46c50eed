"""Plots of the measured indexes: recall against search time, one SVG for label keys and one for instance keys."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from index_builder.svg import render_svg
from service.bundle.manifest import Point
from trainer.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_index_plots(
    folder: Path, points: dict[str, Point], curves: dict[str, list[Point]], top_b: int, recall_target: float
) -> None:
    """Write `labels.svg` and `instances.svg`.

    Args:
        folder: An existing folder.
        points: The chosen measurement of the index, by `labels` and `instances`.
        curves: All measurements, by `labels` and `instances`.
        top_b: Number of keys that each search returned.
        recall_target: The recall that the index must reach.
    """
    for part, point in points.items():
        draw = partial(_draw, part=part, chosen=point, points=curves[part], top_b=top_b, recall_target=recall_target)
        write_text(folder / f"{part}.svg", render_svg(draw, height=6, legend_columns=2))


def _draw(figure: Figure, part: str, chosen: Point, points: list[Point], top_b: int, recall_target: float) -> None:
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
    axes.set_xlabel("search time of a single query on one thread, in milliseconds")
    axes.set_ylabel(f"recall of the exact top {top_b} keys")
    axes.grid(alpha=0.3)
