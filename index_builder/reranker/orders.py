"""The orders of an answer, measured on held-out texts: the weight of the order macro, and the default order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from recollect.core.bundle.manifest import Order, Probabilities
from recollect.core.reranker.macro import macro_order
from recollect.index_builder.reranker.calibrate import Fit, HeldOut
from recollect.index_builder.reranker.gains import Judge
from recollect.trainer.metrics import by_label, hits, ndcg_at

# The weights that are compared.
TAIL_WEIGHTS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
_DEPTH = 5
# Greatest loss, in points: of nDCG@5 with the fitted weight, and of PSP@1 with the default order.
MAX_LOSS = 3.0


@dataclass(frozen=True)
class MostProbable:
    """The most probable labels of held-out texts; -1 pads short lists, with the probability 0."""

    labels: Int[np.ndarray, "query 100"]
    probabilities: Float[np.ndarray, "query 100"]  # in falling order
    counts: Int[np.ndarray, "query 100"]  # number of training instances of each label, without these texts

    @classmethod
    def of(
        cls,
        labels: Int[np.ndarray, "query 100"],
        counts: Int[np.ndarray, "query 100"],
        held_out: HeldOut,
        fitted: Probabilities,
    ) -> MostProbable:
        return cls(labels, held_out.probabilities(Fit(fitted.calibration, fitted.first_calibration)), counts)

    def by_macro(self, tail_weight: float) -> Int[np.ndarray, "query 100"]:
        """The labels in the order macro."""
        queries, depth = self.labels.shape
        query = np.repeat(np.arange(queries), depth)
        order = macro_order(query, self.probabilities.ravel(), self.counts.ravel(), tail_weight)
        return np.asarray(self.labels.ravel()[order].reshape(self.labels.shape))


def fit_tail_weight(labels: MostProbable, truth: sparse.csr_matrix) -> float:
    """The weight with the highest macro F1@5 among those that lose at most 3 points of nDCG@5 against `probability`.

    Near its maximum, macro F1 hardly changes with the weight, while precision falls fast. The smallest weight is always
    possible.
    """
    sizes = np.diff(truth.indptr)
    first, *others = ((weight, labels.by_macro(weight)) for weight in TAIL_WEIGHTS)
    least = _ndcg(labels.labels, truth, sizes) - MAX_LOSS
    possible = [first, *(pair for pair in others if _ndcg(pair[1], truth, sizes) >= least)]
    return max(possible, key=lambda pair: float(by_label(pair[1], truth, _DEPTH)[0].mean()))[0]


def _ndcg(labels: Int[np.ndarray, "query 100"], truth: sparse.csr_matrix, sizes: Int[np.ndarray, " query"]) -> float:
    """Mean nDCG@5, in percent."""
    return float(100 * ndcg_at(hits(labels, truth), sizes, _DEPTH).mean())


class OrderChoice(NamedTuple):
    """The order of requests that choose none, and the weight of the order macro; None without probabilities."""

    order: Order
    tail_weight: float | None


def choose_order(
    judge: Judge,
    metric: str,
    votes: Int[np.ndarray, "query 100"],
    ranked: Int[np.ndarray, "query 100"],
    most_probable: MostProbable | None,
    truth: sparse.csr_matrix,
) -> OrderChoice:
    """Choose the default order of a bundle with a ranker.

    It is `probability`, unless its PSP@1 is more than 3 points below that of the votes. Then it is the order with the
    best metric of those that lose at most 3 points; macro takes part with every weight.
    """
    fitted = None if most_probable is None else fit_tail_weight(most_probable, truth)
    least = judge.mean("PSP@1", votes) - MAX_LOSS
    if judge.mean("PSP@1", ranked) >= least:
        return OrderChoice("probability", fitted)
    rankings = {OrderChoice("score", fitted): votes}
    if most_probable is not None:
        rankings |= {OrderChoice("macro", weight): most_probable.by_macro(weight) for weight in TAIL_WEIGHTS}
    kept = [choice for choice, labels in rankings.items() if judge.mean("PSP@1", labels) >= least]
    return max(kept, key=lambda choice: judge.mean(metric, rankings[choice]))
