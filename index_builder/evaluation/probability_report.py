"""Measure the probabilities of a bundle on a test split: calibration, assigned labels and coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from index_builder.evaluation.probability_metrics import best_fixed_size, brier, example_f1, reliability
from index_builder.svg import render_svg
from service.bundle.manifest import Coverage
from service.ranking.assign import best_set_sizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (1, 5)


@dataclass(frozen=True)
class JudgedProbabilities:
    """Predicted probabilities, and whether the labels are true; in order of falling probability.

    Attributes:
        probabilities: Probability of each prediction; 0 marks a missing prediction.
        hit: Marks the true labels among the predictions.
        sizes: Number of true labels of each query.
    """

    probabilities: Float[np.ndarray, "query label"]
    hit: Bool[np.ndarray, "query label"]
    sizes: Int[np.ndarray, " query"]

    def metrics(self) -> dict[str, float]:
        """ECE and Brier score as fractions; the F1 of the assigned sets and of the best fixed k in percent."""
        errors = {f"ECE@{k}": reliability(self.probabilities, self.hit, k).expected_error for k in DEPTHS}
        means = {name: float(scores.mean()) for name, scores in self.scores.items()}
        return errors | means | {"best k": best_fixed_size(self.hit, self.sizes)}

    @cached_property
    def scores(self) -> dict[str, Float[np.ndarray, " query"]]:
        """The metrics that are means over the queries, for each query."""
        best = best_fixed_size(self.hit, self.sizes)
        return {
            "Brier": brier(self.probabilities, self.hit, self.sizes),
            "F1 assigned": 100 * example_f1(self.hit, self.sizes, best_set_sizes(self.probabilities)),
            "F1 best k": 100 * example_f1(self.hit, self.sizes, best),
        }

    def coverage(self, statements: Sequence[Coverage]) -> list[dict[str, float]]:
        """Check coverage statements: the share of the true labels at or above each probability.

        Returns:
            For each statement its `share` and `probability`, the share `found` here, and the mean number of `labels`
            of a query at or above the probability.
        """
        true_labels = max(1, int(self.sizes.sum()))
        return [
            {
                "share": each.share,
                "probability": each.probability,
                "found": float(np.count_nonzero(reached & self.hit) / true_labels),
                "labels": float(reached.sum(axis=1).mean()),
            }
            for each in statements
            for reached in [(self.probabilities >= each.probability) & (self.probabilities > 0)]
        ]

    def diagram(self) -> str:
        """Draw a reliability diagram as SVG: the share of true labels among predictions of similar probability."""
        return render_svg(partial(_draw, judged=self), height=6, legend_columns=3)


def format_coverage(coverage: Sequence[dict[str, Any]]) -> Iterator[str]:
    for each in coverage:
        yield (
            f"probability >= {each['probability']:.4f}: {each['found']:.1%} of the true labels (expected "
            f"{each['share']:.0%}), among {each['labels']:.1f} labels a text"
        )


def _draw(figure: Figure, judged: JudgedProbabilities) -> None:
    curves, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    curves.plot((0, 1), (0, 1), color="grey", linestyle="dashed", label="ideal")
    for k in DEPTHS:
        bins = reliability(judged.probabilities, judged.hit, k)
        name = f"first {k} labels" if k > 1 else "first label"
        label = f"{name}: ECE {bins.expected_error:.3f}"
        (line,) = curves.plot(bins.probability, bins.true_share, marker="o", label=label)
        counts.plot(bins.probability, bins.predictions, marker="o", color=line.get_color())
    curves.set_title(f"Reliability of the probabilities: {len(judged.sizes):,} texts")
    curves.set_ylabel("share of true labels")
    counts.set_ylabel("predictions")
    counts.set_yscale("log")
    counts.set_xlabel("mean probability of the predictions in a bin")
    for axes in (curves, counts):
        axes.grid(alpha=0.3)
