"""A finished comparison: results, the best two contestants, their significance test, and the sections of its report."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from recollect.index_builder.compare.plots import draw_plots
from recollect.index_builder.compare.results import ContestantResults
from recollect.index_builder.compare.significance import PairedTest, paired_tests, verdict
from recollect.index_builder.compare.tables import plain_table, quality_table, ranked_table, significance_table
from recollect.trainer.metrics import SEGMENTS
from recollect.trainer.report.page import Chart, Section

_FORMAT_VERSION = 1


def _segment_ranges() -> str:
    """The segments with their numbers of training instances."""

    def numbers(below: float, most: float) -> str:
        if most == 0:
            return "0"
        return f"more than {below:,.0f}" if most == math.inf else f"{below + 1:,.0f} to {most:,.0f}"

    return ", ".join(f"{name} ({numbers(*ends)})" for name, ends in SEGMENTS.items())


_QUALITY = (
    "The best value of each column is marked. Tuning chose λ, τ, b and α by {metric} on held-out instances. R@100 "
    "counts only labels that the b retrieved keys vote for. The untrained encoder has no held-out instances: tuning "
    "answers some of its instances, each without its own key. Seconds are training time. They leave out the time to "
    "encode the texts with a frozen encoder, which happens once for all its adapters. Peak memory is main memory, not "
    "GPU memory. With several seeds, a cell is mean ± standard deviation."
)
_PLAIN = (
    "Labels are ranked by the label keys alone (λ = 0, α = 0). A label key is the vector of a dual encoder, a "
    "prototype, or the vectors of dual encoder and classifier side by side. An adapter computes a label key half from "
    "the label's text and half from its instances. There are two exceptions: --label-inputs text uses the text only, "
    "and the method prime uses its prototypes, which include the instances. The last column is the gain in nDCG@5 from "
    "the whole memory with the tuned settings."
)
_RANKED = (
    "Each run's ranker orders the labels, as the service does by default. It was fitted to held-out instances, which "
    "the test split does not contain. A run without figures has no ranker: it would gain less than two standard errors "
    "on these instances, or there are too few of them."
)
# For each section with plots: its heading, its text, and the names of its plots.
_PLOTS = (
    (
        "Quality against training time",
        "Lines show nDCG@5 on held-out instances during training, with the best of a few values of τ and λ. Markers "
        "show nDCG@5 on the test split with the tuned settings.",
        ["time"],
    ),
    (
        "The λ curve",
        "The quality on the test split at each λ, from label keys alone (λ = 0) to instance keys alone (λ = 1), with "
        "the tuned τ, b and α.",
        ["lambda", "lambda_p1"],
    ),
    ("Label segments", f"Labels grouped by their number of training instances: {_segment_ranges()}.", ["segments"]),
)


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Attributes:
        title: Title of the report; it names the dataset and the encoder.
        metric: The metric that tuning maximises. It also decides the best two contestants.
        results: Results of all contestants.
        best: Names of the best two contestants, the best first.
        tests: Paired tests between the best two contestants, one for each metric.
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
            metric: The metric that tuning maximises.
            results: Results of all contestants.
            sizes: Number of true labels of each query.
            provenance: Facts needed to repeat the comparison.
        """
        first, second = sorted(results, key=lambda each: -each.tuned(metric))[:2]
        tests = paired_tests(first.scores(sizes), second.scores(sizes))
        return cls(title, metric, results, (first.name, second.name), tests, provenance)

    @property
    def verdict(self) -> str:
        return verdict(*self.best, self.tests)

    def plots(self) -> dict[str, Chart]:
        """The plots, by name."""
        return draw_plots(self.results)

    def sections(self, plots: dict[str, Chart]) -> list[Section]:
        """The sections of the report, with the given plots."""
        significance = f"{self.best[0]} and {self.best[1]} are the best two by {self.metric}. {self.verdict}"
        return [
            Section("Quality and cost", _QUALITY.format(metric=self.metric), tables=[quality_table(self.results)]),
            *self._ranked(),
            Section("Without the instances' votes", _PLAIN, tables=[plain_table(self.results)]),
            Section("Significance", significance, tables=[significance_table(*self.best, self.tests)]),
            *(
                Section(heading, text, [plots[name] for name in names])
                for heading, text, names in _PLOTS
                if plots.keys() >= {*names}
            ),
        ]

    def _ranked(self) -> list[Section]:
        """The section of the rankers, if a run has one."""
        if all(run.quality.ranked is None for each in self.results for run in each.runs):
            return []
        return [Section("In order of probability", _RANKED, tables=[ranked_table(self.results)])]

    def as_json(self) -> dict[str, Any]:
        """All figures of the report."""
        tests = [asdict(test) | {"significant": test.significant} for test in self.tests]
        return {
            "format_version": _FORMAT_VERSION,
            "title": self.title,
            "metric": self.metric,
            "contestants": [each.as_json() for each in self.results],
            "significance": {"best": list(self.best), "tests": tests, "verdict": self.verdict},
            "made": self.provenance,
        }
