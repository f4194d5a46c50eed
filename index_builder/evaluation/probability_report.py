"""Measure the probabilities of a bundle on a test split: calibration, assigned labels and coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.index_builder.evaluation.probability_metrics import best_fixed_size, brier, example_f1
from recollect.service.bundle.manifest import Coverage
from recollect.service.ranking.assign import best_set_sizes

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

    @cached_property
    def best_k(self) -> int:
        """The number of labels with the highest F1, if every query gets this number."""
        return best_fixed_size(self.hit, self.sizes)

    @cached_property
    def scores(self) -> dict[str, Float[np.ndarray, " query"]]:
        """The metrics that are means over the queries, for each query."""
        return {
            "Brier": brier(self.probabilities, self.hit, self.sizes),
            "F1 assigned": 100 * example_f1(self.hit, self.sizes, best_set_sizes(self.probabilities)),
            "F1 best k": 100 * example_f1(self.hit, self.sizes, self.best_k),
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


def format_coverage(coverage: Sequence[dict[str, Any]]) -> Iterator[str]:
    for each in coverage:
        yield (
            f"probability >= {each['probability']:.4f}: {each['found']:.1%} of the true labels (expected "
            f"{each['share']:.0%}), among {each['labels']:.1f} labels a text"
        )
