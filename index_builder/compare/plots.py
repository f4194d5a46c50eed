"""The comparison's plots: quality against training time (RAE-XMC, Figure 2), the lambda curve, the label segments."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from index_builder.compare.standing import Result, Standing
from index_builder.svg import svg
from trainer.metrics import SEGMENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Seconds that differ by more than this factor are told apart on a logarithmic axis alone.
_WIDE = 20
_MARKERS = "osD^vP*Xp<>h"


def plots(standings: Sequence[Standing]) -> dict[str, str]:
    """Each plot's SVG by its name; without a training that was timed, there is none of time."""
    timed = any(standing.mean(_seconds) is not None for standing in standings)
    drawn: dict[str, Callable[..., None]] = {"time": _time} if timed else {}
    drawn |= {"lambda": _lambda, "segments": _segments}
    return {name: svg(partial(draw, standings=standings), height=5, columns=5) for name, draw in drawn.items()}


def _time(figure: Figure, standings: Sequence[Standing]) -> None:
    axes = figure.add_subplot()
    ends = []
    for nth, standing in enumerate(standings):
        color, seconds, reached = _color(nth), standing.mean(_seconds), standing.tuned("nDCG@5")
        if seconds is None:
            axes.axhline(reached, color=color, linestyle="dashed", label=standing.name)
            continue
        for result in standing.results:
            learning = [(at, score) for at, score in result.learning if at > 0]
            axes.plot([at for at, _ in learning], [score for _, score in learning], color=color, alpha=0.6)
        axes.plot(seconds, reached, _MARKERS[nth % len(_MARKERS)], color=color, label=standing.name, linestyle="none")
        ends.append(seconds)
    if max(ends) > _WIDE * min(ends):
        axes.set_xscale("log")
    axes.set_title("Quality against training time")
    axes.set_xlabel("training time in seconds")
    axes.set_ylabel("nDCG@5, in percent")
    axes.grid(alpha=0.3)


def _lambda(figure: Figure, standings: Sequence[Standing]) -> None:
    for axes, metric in zip(figure.subplots(1, 2), ("P@1", "nDCG@5"), strict=True):
        for nth, standing in enumerate(standings):
            _curve(axes, standing, metric, nth)
        axes.set_title(metric)
        axes.set_xlabel("λ: 0 labels alone, 1 instances alone; marked: as tuned")
        axes.set_ylabel(f"{metric} on the test split, in percent")
        axes.grid(alpha=0.3)


def _curve(axes: Axes, standing: Standing, metric: str, nth: int) -> None:
    """The mean over the seeds at each lambda that all were asked, and each run at its own."""
    color, scores = _color(nth), defaultdict(list)
    for result in standing.results:
        for point in result.quality.curve:
            scores[point["lambda"]].append(point[metric])
            if point["lambda"] == result.quality.answering["lambda"]:
                axes.plot(point["lambda"], point[metric], _MARKERS[nth % len(_MARKERS)], color=color)
    shared = [(at, found) for at, found in sorted(scores.items()) if len(found) == len(standing.results)]
    axes.plot(
        [at for at, _ in shared], [statistics.fmean(found) for _, found in shared], color=color, label=standing.name
    )


def _segments(figure: Figure, standings: Sequence[Standing]) -> None:
    axes = figure.add_subplot()
    names = [name for name in SEGMENTS if standings[0].results[0].quality.tuned[f"F1@5 {name}"] is not None]
    width = 0.8 / len(standings)
    for nth, standing in enumerate(standings):
        heights = [standing.tuned(f"F1@5 {name}") for name in names]
        places = [row - 0.4 + (nth + 0.5) * width for row in range(len(names))]
        axes.bar(places, heights, width, color=_color(nth), label=standing.name)
    axes.set_xticks(range(len(names)), [_segment(name) for name in names])
    axes.set_title("Macro F1@5 by label segment")
    axes.set_ylabel("macro F1@5 on the test split, in percent")
    axes.grid(alpha=0.3, axis="y")


def _color(nth: int) -> str:
    """Ten strong colours, then the same ten paler."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["tab20"](2 * nth % 20 + nth // 10 % 2))


def _segment(name: str) -> str:
    more_than, at_most = SEGMENTS[name]
    if more_than < 0:
        return f"{name}\n≤ {at_most:,.0f} instances"
    return f"{name}\n> {more_than:,.0f}" + ("" if at_most == float("inf") else f", ≤ {at_most:,.0f}")


def _seconds(result: Result) -> float | None:
    return result.measured.get("seconds")
