"""Plots of what was measured: an SVG for each part of the memory, recall over time, one line a family of indexes."""

from __future__ import annotations

import itertools
from pathlib import Path

from service.manifest import Point


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
    from matplotlib import rc_context  # plots are rare, and take a second to load

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "recollect"}):  # text that reads; the same plot every time
        for part, point in points.items():
            _plot(folder / f"{part}.svg", part, point, curves[part], top_b, recall_target)


def _plot(path: Path, part: str, chosen: Point, points: list[Point], top_b: int, recall_target: float) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
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
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, metadata={"Date": None})
