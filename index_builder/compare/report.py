"""The comparison as a whole: what was found, and how it was made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from index_builder.compare.plots import plots
from index_builder.compare.significance import PairedTest, paired_test, verdict
from index_builder.compare.standing import Standing
from index_builder.compare.tables import Table, plain_table, quality_table, significance_table

_FORMAT_VERSION = 1

_QUALITY = (
    "The best of each column is marked. Tuning chose λ, τ, b and α for {metric} on instances that were held out; R@100 "
    "counts only labels that the b keys vote for. Where nothing was trained, any instances were asked, each left out "
    "of its own answer. Seconds are those of the training: what a frozen encoder encodes once for all its adapters is "
    "not among them; peak memory is the machine's own, not a GPU's. Several seeds: mean ± standard deviation."
)
_PLAIN = (
    "Labels ranked by their keys alone (λ = 0, α = 0): the vectors of a dual encoder, prototypes, or vectors of dual "
    "encoder and classifier side by side. An adapter reads more of a label than its text: half of it are its "
    "instances, unless --label-inputs text was given, or the method is prime, which has them in its prototypes. The "
    "last column is what the whole memory, as tuned, adds."
)
_PLOTS = {
    "time": (
        "Quality against training time",
        "Lines are nDCG@5 on held-out instances while the training goes on, at the best of a few τ and λ; marks are "
        "nDCG@5 on the test split, as tuned.",
    ),
    "lambda": ("The λ curve", "From labels alone (λ = 0) to instances alone (λ = 1), at the tuned τ, b and α."),
    "segments": ("Label segments", "Labels by the number of training instances that have them."),
}


@dataclass(frozen=True)
class Section:
    """A part of the report: what is said, with a table or a plot.

    Attributes:
        heading: Above it.
        text: Beside it.
        table: If it has one.
        plot: The name of its plot, if it has one.
    """

    heading: str
    text: str
    table: Table | None = None
    plot: str | None = None


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Attributes:
        title: Of the report; names dataset and encoder.
        metric: What tuning was for; by it two contestants are the best.
        standings: Of all contestants.
        best: The best two, the best first.
        tests: These two against each other.
        made: How it was made; no path of the machine.
    """

    title: str
    metric: str
    standings: list[Standing]
    best: tuple[str, str]
    tests: list[PairedTest]
    made: dict[str, str]

    @classmethod
    def of(
        cls, title: str, metric: str, standings: list[Standing], sizes: Int[np.ndarray, " query"], made: dict[str, str]
    ) -> Comparison:
        """Find the best two and test them against each other; `sizes` tells how many true labels each query has."""
        first, second = sorted(standings, key=lambda standing: -standing.tuned(metric))[:2]
        ours, theirs = first.scores(sizes), second.scores(sizes)
        tests = [paired_test(name, ours[name], theirs[name]) for name in ours]
        return cls(title, metric, standings, (first.name, second.name), tests, made)

    @property
    def verdict(self) -> str:
        return verdict(*self.best, self.tests)

    def plots(self) -> dict[str, str]:
        """The SVG of each plot, by name."""
        return plots(self.standings)

    def sections(self, drawn: dict[str, str]) -> list[Section]:
        """The report's parts; `drawn` are its plots."""
        found = f"{self.best[0]} and {self.best[1]} are the best two by {self.metric}. {self.verdict}"
        return [
            Section("Quality and cost", _QUALITY.format(metric=self.metric), quality_table(self.standings)),
            Section("Without the instances' votes", _PLAIN, plain_table(self.standings)),
            Section("Significance", found, significance_table(*self.best, self.tests)),
            *(Section(*_PLOTS[name], plot=name) for name in drawn),
        ]

    def as_json(self) -> dict[str, Any]:
        """All figures, for machines."""
        tests = [asdict(test) | {"significant": test.significant} for test in self.tests]
        return {
            "format_version": _FORMAT_VERSION,
            "title": self.title,
            "metric": self.metric,
            "contestants": [standing.as_json() for standing in self.standings],
            "significance": {"best": list(self.best), "tests": tests, "verdict": self.verdict},
            "made": self.made,
        }
