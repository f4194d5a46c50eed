"""A finished comparison: results, the best two contestants, their significance test, and the sections of its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from index_builder.compare.plots import draw_plots
from index_builder.compare.results import ContestantResults
from index_builder.compare.significance import PairedTest, paired_test, verdict
from index_builder.compare.tables import Table, plain_table, quality_table, significance_table

_FORMAT_VERSION = 1

_QUALITY = (
    "The best value of each column is marked. Tuning chose λ, τ, b and α by {metric} on held-out instances. R@100 "
    "counts only labels that the b keys vote for. For the untrained encoder, tuning asks any instances and leaves each "
    "one out of its own answer. Seconds are training time, without the time to encode texts once with a frozen encoder "
    "for all its adapters. Peak memory is main memory, not GPU memory. Several seeds: mean ± standard deviation."
)
_PLAIN = (
    "Labels are ranked by their keys alone (λ = 0, α = 0). A label key is the vector of a dual encoder, a prototype, "
    "or the vectors of dual encoder and classifier side by side. With an adapter, half of a label key comes from the "
    "label's instances; not with --label-inputs text, and not with the method prime, whose prototypes hold them. The "
    "last column is the gain from the whole memory, as tuned."
)
_PLOTS = {
    "time": (
        "Quality against training time",
        "Lines: nDCG@5 on held-out instances during training, at the best of a few τ and λ. Markers: nDCG@5 on the "
        "test split, as tuned.",
    ),
    "lambda": ("The λ curve", "From labels alone (λ = 0) to instances alone (λ = 1), at the tuned τ, b and α."),
    "segments": ("Label segments", "Labels grouped by their number of training instances."),
}


@dataclass(frozen=True)
class Section:
    """A section of the report: a text with a table or a plot.

    Attributes:
        heading: Heading of the section.
        text: Explanation of the table or plot.
        table: The table, if the section has one.
        plot: The name of the plot, if the section has one.
    """

    heading: str
    text: str
    table: Table | None = None
    plot: str | None = None


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Attributes:
        title: Title of the report; it names the dataset and the encoder.
        metric: Tuning metric; it also decides the best two contestants.
        results: Results of all contestants.
        best: Names of the best two contestants, the best first.
        tests: Paired tests between these two.
        provenance: Facts needed to repeat the comparison.
    """

    title: str
    metric: str
    results: list[ContestantResults]
    best: tuple[str, str]
    tests: list[PairedTest]
    provenance: dict[str, str]

    @classmethod
    def of(
        cls,
        title: str,
        metric: str,
        results: list[ContestantResults],
        sizes: Int[np.ndarray, " query"],
        provenance: dict[str, str],
    ) -> Comparison:
        """Find the best two contestants and test their difference.

        Args:
            title: Title of the report.
            metric: Tuning metric.
            results: Results of all contestants.
            sizes: Number of true labels of each query.
            provenance: Facts needed to repeat the comparison.
        """
        first, second = sorted(results, key=lambda each: -each.tuned(metric))[:2]
        first_scores, second_scores = first.scores(sizes), second.scores(sizes)
        tests = [paired_test(name, first_scores[name], second_scores[name]) for name in first_scores]
        return cls(title, metric, results, (first.name, second.name), tests, provenance)

    @property
    def verdict(self) -> str:
        return verdict(*self.best, self.tests)

    def plots(self) -> dict[str, str]:
        """Each plot as SVG, by name."""
        return draw_plots(self.results)

    def sections(self, plots: dict[str, str]) -> list[Section]:
        """Sections of the report, with one for each of these plots."""
        significance = f"{self.best[0]} and {self.best[1]} are the best two by {self.metric}. {self.verdict}"
        return [
            Section("Quality and cost", _QUALITY.format(metric=self.metric), quality_table(self.results)),
            Section("Without the instances' votes", _PLAIN, plain_table(self.results)),
            Section("Significance", significance, significance_table(*self.best, self.tests)),
            *(Section(*_PLOTS[name], plot=name) for name in plots),
        ]

    def as_json(self) -> dict[str, Any]:
        """All figures."""
        tests = [asdict(test) | {"significant": test.significant} for test in self.tests]
        return {
            "format_version": _FORMAT_VERSION,
            "title": self.title,
            "metric": self.metric,
            "contestants": [each.as_json() for each in self.results],
            "significance": {"best": list(self.best), "tests": tests, "verdict": self.verdict},
            "made": self.provenance,
        }
