"""Plots of the report: quality against training time (RAE-XMC, Figure 2), the lambda curve, and the label segments."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from index_builder.compare.results import ContestantResults, RunResult
from index_builder.svg import render_svg
from trainer.metrics import SEGMENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The axis of training times is logarithmic if the longest is more than this many times the shortest.
_LOGARITHMIC_FACTOR = 20
_MARKERS = "osD^vP*Xp<>h"


def draw_plots(results: Sequence[ContestantResults]) -> dict[str, str]:
    """Draw the plots as SVG, by name. The plot `time` is left out if no contestant was trained."""
    timed = any(each.mean(_seconds) is not None for each in results)
    plots: dict[str, Callable[..., None]] = {"time": _draw_time} if timed else {}
    plots |= {"lambda": _draw_lambda, "segments": _draw_segments}
    return {
        name: render_svg(partial(draw, results=results), height=5, legend_columns=5) for name, draw in plots.items()
    }


def _draw_time(figure: Figure, results: Sequence[ContestantResults]) -> None:
    axes = figure.add_subplot()
    ends = []
    for number, contestant in enumerate(results):
        color, seconds, reached = _color(number), contestant.mean(_seconds), contestant.tuned("nDCG@5")
        if seconds is None:
            axes.axhline(reached, color=color, linestyle="dashed", label=contestant.name)
            continue
        for run in contestant.runs:
            learning = [(at, score) for at, score in run.learning if at > 0]
            axes.plot([at for at, _ in learning], [score for _, score in learning], color=color, alpha=0.6)
        axes.plot(
            seconds, reached, _MARKERS[number % len(_MARKERS)], color=color, label=contestant.name, linestyle="none"
        )
        ends.append(seconds)
    if max(ends) > _LOGARITHMIC_FACTOR * min(ends):
        axes.set_xscale("log")
    axes.set_title("Quality against training time")
    axes.set_xlabel("training time in seconds")
    axes.set_ylabel("nDCG@5, in percent")
    axes.grid(alpha=0.3)


def _draw_lambda(figure: Figure, results: Sequence[ContestantResults]) -> None:
    for axes, metric in zip(figure.subplots(1, 2), ("P@1", "nDCG@5"), strict=True):
        for number, contestant in enumerate(results):
            _draw_lambda_curve(axes, contestant, metric, number)
        axes.set_title(metric)
        axes.set_xlabel("λ: 0 labels alone, 1 instances alone; marked: the tuned λ")
        axes.set_ylabel(f"{metric} on the test split, in percent")
        axes.grid(alpha=0.3)


def _draw_lambda_curve(axes: Axes, contestant: ContestantResults, metric: str, number: int) -> None:
    """Draw the mean score over the runs at each lambda that all runs were measured at.

    A marker shows each run at its own tuned lambda.
    """
    color, scores = _color(number), defaultdict(list)
    for run in contestant.runs:
        for point in run.quality.curve:
            scores[point["lambda"]].append(point[metric])
            if point["lambda"] == run.quality.answering["lambda"]:
                axes.plot(point["lambda"], point[metric], _MARKERS[number % len(_MARKERS)], color=color)
    shared = [(at, found) for at, found in sorted(scores.items()) if len(found) == len(contestant.runs)]
    axes.plot(
        [at for at, _ in shared], [statistics.fmean(found) for _, found in shared], color=color, label=contestant.name
    )


def _draw_segments(figure: Figure, results: Sequence[ContestantResults]) -> None:
    axes = figure.add_subplot()
    names = [name for name in SEGMENTS if results[0].runs[0].quality.tuned[f"F1@5 {name}"] is not None]
    width = 0.8 / len(results)
    for number, contestant in enumerate(results):
        heights = [contestant.tuned(f"F1@5 {name}") for name in names]
        places = [row - 0.4 + (number + 0.5) * width for row in range(len(names))]
        axes.bar(places, heights, width, color=_color(number), label=contestant.name)
    axes.set_xticks(range(len(names)), [_segment_title(name) for name in names])
    axes.set_title("Macro F1@5 by label segment")
    axes.set_ylabel("macro F1@5 on the test split, in percent")
    axes.grid(alpha=0.3, axis="y")


def _color(number: int) -> str:
    """The colour of a contestant: ten strong colours for the first ten, then ten paler colours."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["tab20"](2 * number % 20 + number // 10 % 2))


def _segment_title(name: str) -> str:
    more_than, at_most = SEGMENTS[name]
    if at_most == 0:
        return f"{name}\nno instances"
    return f"{name}\n> {more_than:,.0f}" + ("" if at_most == float("inf") else f", ≤ {at_most:,.0f}")


def _seconds(run: RunResult) -> float | None:
    return run.measured.get("seconds")
