"""Validation: measure how well the memory of the training instances predicts the labels of held-out instances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core.neighbours import Neighbours
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.inference import InferenceSetting, predict
from recollect.trainer.memory.memory import DEFAULTS
from recollect.trainer.memory.search import merge_nearest, nearest, nearest_among
from recollect.trainer.metrics import hits, ndcg_at
from recollect.trainer.settings import VALIDATE_LAMBDA
from recollect.trainer.training.keys import Keys

# A checkpoint is compared at its best tau and lambda, because its memory will be tuned.
_TOP_B = int(DEFAULTS["top_b"])
_K = 5


@dataclass(frozen=True)
class Validation:
    """The validation queries and the memory that answers them.

    Attributes:
        held_out: The instances that take no part in training, and are not in the memory.
        filtered: The labels that are removed from the predictions for each instance.
        temperatures: Values of tau, of which the best counts.
        lambdas: Values of lambda, of which the best counts.
        queries: The held-out instances that may be queries; None: all of them. Those without labels are no queries.
    """

    held_out: Bool[np.ndarray, " instance"]
    label_sets: LabelSets
    labels: int
    device: str
    filtered: LabelSets
    temperatures: tuple[float, ...] = (0.03, 0.05, 0.1)
    lambdas: tuple[float, ...] = VALIDATE_LAMBDA
    queries: Bool[np.ndarray, " instance"] | None = None

    @property
    def rows(self) -> Int[np.ndarray, " query"]:
        queries = self.held_out if self.queries is None else self.queries
        return np.flatnonzero(queries & (np.diff(self.label_sets.indptr) > 0))

    def score(self, keys: Keys) -> float:
        """Return nDCG@5 in percent, with a memory's default b and the best of the values of tau and lambda.

        Each rank searches its own instances and labels for all queries, and then predicts its share of the queries.
        """
        ranks, values = keys.instances.ranks, self.label_sets.to_csr(self.labels)
        settings = [InferenceSetting(each, tau, _TOP_B) for tau in self.temperatures for each in self.lambdas]
        queries = keys.instances.gather(self.rows)
        instances, labels = self._nearest_instances(queries, keys), self._nearest_labels(queries, keys)
        share = slice(*ranks.bounds(len(queries)))
        truth, filtered = values[self.rows[share]], self.filtered.to_csr(self.labels)[self.rows[share]]
        sizes, sums = np.diff(truth.indptr), np.zeros(len(settings))
        if len(sizes):
            answers = predict(instances[share], labels[share], values, settings, _K, filtered)
            sums += [ndcg_at(hits(predictions, truth), sizes, _K).sum() for _, predictions in answers]
        return 100 * float(ranks.all_reduce_array(sums, self.device).max()) / len(queries)

    def _nearest_instances(self, queries: Float[np.ndarray, "query dim"], keys: Keys) -> Neighbours:
        start, stop = keys.instances.bounds
        voters = np.flatnonzero(~self.held_out[start:stop])
        near, rows = nearest_among(queries, keys.instances.own, voters, _TOP_B, self.device)
        top = min(_TOP_B, int(np.count_nonzero(~self.held_out)))
        return Neighbours(*merge_nearest(near, rows + start, top, keys.instances.ranks, self.device))

    def _nearest_labels(self, queries: Float[np.ndarray, "query dim"], keys: Keys) -> Neighbours:
        ranks = keys.instances.ranks
        first, last = ranks.bounds(self.labels)
        near, rows = nearest(queries, keys.labels[first:last], _TOP_B, self.device)
        return Neighbours(*merge_nearest(near, rows + first, min(_TOP_B, self.labels), ranks, self.device))
