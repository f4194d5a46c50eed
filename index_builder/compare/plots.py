"""Plots of the report: quality against training time (RAE-XMC, Figure 2), the lambda curves, and the label segments."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from recollect.index_builder.compare.results import ContestantResults, RunResult
from recollect.trainer.metrics import SEGMENTS
from recollect.trainer.report.charts import Line, bar_chart, line_chart
from recollect.trainer.report.page import Cell, Chart, Table
from recollect.trainer.report.scale import Axis

# The axis of training times is logarithmic if the longest is more than this many times the shortest.
_LOGARITHMIC_FACTOR = 20


def draw_plots(results: Sequence[ContestantResults]) -> dict[str, Chart]:
    """Draw the plots, by name. The plot `time` is left out if no contestant was trained."""
    timed = any(each.mean(_seconds) is not None for each in results)
    return ({"time": _time(results)} if timed else {}) | {
        "lambda": _lambda_curves(results, "nDCG@5"),
        "lambda_p1": _lambda_curves(results, "P@1"),
        "segments": _segments(results),
    }


def _time(results: Sequence[ContestantResults]) -> Chart:
    lines = []
    ends = [seconds for each in results if (seconds := each.mean(_seconds)) is not None]
    starts = [at for each in results for run in each.runs for at, _ in run.learning if at > 0]
    for contestant in results:
        seconds, reached = contestant.mean(_seconds), contestant.tuned("nDCG@5")
        if seconds is None:
            level = [(min([*starts, *ends]), reached), (max(ends), reached)]
            lines.append(Line(contestant.name, level, marked=False, reference=True))
            continue
        for run in contestant.runs:
            learning = [(at, score) for at, score in run.learning if at > 0]
            lines.append(Line(contestant.name, learning, marked=False))
        lines.append(Line(contestant.name, [(seconds, reached)], line=False))
    x = Axis("training time in seconds", log=max(ends) > _LOGARITHMIC_FACTOR * min(ends))
    return Chart(line_chart("Quality against training time", lines, x, Axis("nDCG@5, in percent")))


def _lambda_curves(results: Sequence[ContestantResults], metric: str) -> Chart:
    """The mean score over the runs at each lambda that all runs were measured at.

    A marker shows each run at its own tuned lambda.
    """
    lines, curves = [], {}
    for contestant in results:
        scores, tuned = defaultdict(list), []
        for run in contestant.runs:
            for point in run.quality.curve:
                scores[point["lambda"]].append(point[metric])
                if point["lambda"] == run.quality.answering["lambda"]:
                    tuned.append((point["lambda"], point[metric]))
        shared = {at: found for at, found in sorted(scores.items()) if len(found) == len(contestant.runs)}
        curves[contestant.name] = curve = {at: statistics.fmean(found) for at, found in shared.items()}
        lines += [Line(contestant.name, [*curve.items()], marked=False), Line(contestant.name, tuned, line=False)]
    title, x = f"{metric} by λ", Axis("λ: 0 labels alone, 1 instances alone; marked: the tuned λ", least=0, most=1)
    rows = [
        [Cell(f"{at:g}"), *(Cell(f"{curve[at]:.2f}" if at in curve else "-") for curve in curves.values())]
        for at in sorted({at for curve in curves.values() for at in curve})
    ]
    table = Table(f"{title}, in percent", ["λ", *curves], rows)
    return Chart(line_chart(title, lines, x, Axis(f"{metric}, in percent")), table)


def _segments(results: Sequence[ContestantResults]) -> Chart:
    names = [name for name in SEGMENTS if results[0].runs[0].quality.tuned[f"F1@5 {name}"] is not None]
    bars = {each.name: [each.tuned(f"F1@5 {name}") for name in names] for each in results}
    return Chart(bar_chart("Macro F1@5 by label segment", names, bars, "label segment", Axis("macro F1@5, in percent")))


def _seconds(run: RunResult) -> float | None:
    return run.measured.get("seconds")
