"""Validation: hold out instances, and measure how well the memory of all other instances predicts their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from trainer.data.split import LabelSets
from trainer.encoding.keys import Keys
from trainer.memory.inference import InferenceSetting, Neighbours, predict
from trainer.memory.label_keys import LabelKeys
from trainer.memory.memory import DEFAULTS
from trainer.memory.search import nearest, nearest_among
from trainer.metrics import hits, ndcg_at
from trainer.randomness import Purpose, generator

_MOST_QUERIES = 4_000
# A checkpoint is compared at its best tau and lambda, because its memory will be tuned.
_TOP_B = int(DEFAULTS["top_b"])
_TEMPERATURES, _LAMBDAS = (0.03, 0.05, 0.1), (0.05, 0.1, 0.2, 0.4, 0.7)
_SETTINGS = [InferenceSetting(lambda_, temperature, _TOP_B) for temperature in _TEMPERATURES for lambda_ in _LAMBDAS]
_K = 5


def hold_out(label_sets: LabelSets, fraction: float, seed: int) -> Bool[np.ndarray, " instance"]:
    """Choose the instances to validate on, among the instances with labels. At least one instance stays in training."""
    labelled = np.flatnonzero(np.diff(label_sets.indptr))
    count = min(round(fraction * len(labelled)), _MOST_QUERIES, max(0, len(labelled) - 1))
    held_out = np.zeros(len(label_sets), dtype=bool)
    held_out[generator(seed, Purpose.VALIDATION).permutation(labelled)[:count]] = True
    return held_out


@dataclass(frozen=True)
class Validation:
    """The validation queries and the memory that answers them.

    Attributes:
        held_out: The instances that are queries. They take no part in training, and are not in the memory.
        label_sets: The labels of each instance.
        labels: Number of labels.
        alpha: Weight of the instances in label keys; 0: text alone.
        device: Where to search.
        filtered: The labels that are removed from the predictions for each instance.
    """

    held_out: Bool[np.ndarray, " instance"]
    label_sets: LabelSets
    labels: int
    alpha: float
    device: str
    filtered: LabelSets

    @property
    def rows(self) -> Int[np.ndarray, " query"]:
        return np.flatnonzero(self.held_out)

    def score(self, keys: Keys) -> float:
        """Return nDCG@5 in percent, with a memory's default b and the best of a few values of tau and lambda."""
        queries, voters = keys.gathered[self.rows], np.flatnonzero(~self.held_out)
        values = self.label_sets.to_csr(self.labels)
        truth = values[self.rows]
        label_keys = LabelKeys(keys.labels, keys.gathered, self.label_sets.where(~self.held_out), self.alpha).filled()
        instances = Neighbours(*nearest_among(queries, keys.gathered, voters, _TOP_B, self.device))
        labels = Neighbours(*nearest(queries, label_keys, _TOP_B, self.device))
        sizes, filtered = np.diff(truth.indptr), self.filtered.to_csr(self.labels)[self.rows]
        return max(
            100 * float(ndcg_at(hits(predictions, truth), sizes, _K).mean())
            for _, predictions in predict(instances, labels, values, _SETTINGS, _K, filtered)
        )
