"""Held-out instances: which ones, and how well the memory of all others answers them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from trainer.batches import Purpose, generator
from trainer.dataset import LabelSets
from trainer.inference import Answering, Neighbours, answer
from trainer.keys import Keys
from trainer.label_keys import LabelKeys
from trainer.metrics import hits, ndcg_at
from trainer.search import nearest

_MOST_QUERIES = 4_000
# RAE-XMC's own settings: every checkpoint is asked alike.
_ANSWERING = Answering(lambda_=0.5, temperature=0.04, top_b=200)
_K = 5


def hold_out(label_sets: LabelSets, fraction: float, seed: int) -> Bool[np.ndarray, " instance"]:
    """Choose the instances to validate on, among those that have a label; at least one stays to train on."""
    labelled = np.flatnonzero(np.diff(label_sets.indptr))
    count = min(round(fraction * len(labelled)), _MOST_QUERIES, max(0, len(labelled) - 1))
    held_out = np.zeros(len(label_sets), dtype=bool)
    held_out[generator(seed, Purpose.VALIDATION).permutation(labelled)[:count]] = True
    return held_out


@dataclass(frozen=True)
class Validation:
    """What is asked, and what may answer.

    Attributes:
        held_out: Instances that are asked, and that neither train nor vote.
        label_sets: Of every instance.
        labels: How many labels there are.
        alpha: Weight of the instances in label keys; 0: text alone.
        device: Where to search.
    """

    held_out: Bool[np.ndarray, " instance"]
    label_sets: LabelSets
    labels: int
    alpha: float
    device: str

    @property
    def rows(self) -> Int[np.ndarray, " query"]:
        return np.flatnonzero(self.held_out)

    def score(self, keys: Keys) -> float:
        """nDCG@5 in percent of RAE inference at lambda .5, tau .04, b 200."""
        voters = np.flatnonzero(~self.held_out)
        relevance = self.label_sets.to_csr(self.labels)
        queries, instance_keys = keys.instances[self.rows], keys.instances[voters]
        remembered = relevance[voters]
        label_keys = LabelKeys(keys.labels, instance_keys, LabelSets.of(remembered), self.alpha)[:]
        top_b = _ANSWERING.top_b
        instances, labels = (
            Neighbours(*nearest(queries, part, top_b, self.device)) for part in (instance_keys, label_keys)
        )
        _, predictions = next(answer(instances, labels, remembered, [_ANSWERING], _K))
        truth = relevance[self.rows]
        return 100 * float(ndcg_at(hits(predictions, truth), np.diff(truth.indptr), _K).mean())
