"""The table of `recollect train --best`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recollect.index_builder.ranking.gains import METRICS
from recollect.index_builder.ranking.rank import Ranking

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Result:
    """The quality of one contestant on texts that its training and its ranker did not see.

    Attributes:
        name: Name of the contestant.
        order: The better order of its labels: `probability` with a ranker, otherwise `score`.
        metrics: Metrics in this order, in percent.
        seconds: Time for training, encoding, tuning and ranking.
    """

    name: str
    order: str
    metrics: dict[str, float]
    seconds: float

    @classmethod
    def of(cls, name: str, ranking: Ranking, seconds: float) -> Result:
        metrics = {gain.name: gain.ranker if ranking.kept else gain.votes for gain in ranking.gains}
        return cls(name, "probability" if ranking.kept else "score", metrics, seconds)


def table(results: Sequence[Result], winner: Result) -> list[str]:
    """A table of the contestants in Markdown; the winner is in bold."""
    head = f"| contestant | order | {' | '.join(METRICS)} | seconds |"
    lines = [head, f"|---|---|{'---:|' * (len(METRICS) + 1)}"]
    for result in results:
        name = f"**{result.name}**" if result is winner else result.name
        figures = " | ".join(f"{result.metrics[metric]:.2f}" for metric in METRICS)
        lines.append(f"| {name} | {result.order} | {figures} | {result.seconds:,.0f} |")
    return lines


def as_json(results: Sequence[Result], winner: Result, metric: str) -> dict[str, Any]:
    return {
        "format_version": _FORMAT_VERSION,
        "metric": metric,
        "winner": winner.name,
        "contestants": [asdict(result) for result in results],
    }
