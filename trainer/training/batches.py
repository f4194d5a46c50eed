"""Batches: the queries of a training step, their positives, and the pool of labels compared with the queries.

Each random draw uses a generator with the seed (seed, purpose, number of the step or epoch). The step number is
therefore the whole state of the sampler: all processes draw the same batch, and a resumed run draws the same batches as
an uninterrupted run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import sparse
from torch import Tensor

from recollect.trainer.data.split import LabelSets
from recollect.trainer.randomness import Purpose, generator
from recollect.trainer.training.negatives import HardNegatives

# Replaces label weights of 0 or below, which the propensity model gives for fewer than 3 instances. Labels with this
# weight are drawn last.
_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True)
class Pairs:
    """Pairs of a query (its place in the batch) and a key (its place in the pool), in the order of the queries."""

    query: Int[np.ndarray, " pair"]
    key: Int[np.ndarray, " pair"]

    def mask(
        self, queries: tuple[int, int], keys: tuple[int, int], device: torch.device | str = "cpu"
    ) -> Bool[Tensor, "query key"]:
        """Return a matrix on the device that marks the pairs of a range of queries and a range of keys."""
        first, last = np.searchsorted(self.query, queries)
        query, key = self.query[first:last] - queries[0], self.key[first:last] - keys[0]
        within = (key >= 0) & (key < keys[1] - keys[0])
        mask = torch.zeros((queries[1] - queries[0], keys[1] - keys[0]), dtype=torch.bool, device=device)
        mask[tuple(torch.from_numpy(place[within]).to(device) for place in (query, key))] = True
        return mask


@dataclass(frozen=True)
class Batch:
    """The queries and the pool of labels of one training step.

    Attributes:
        pool: Positions of the labels in the pool, ascending and distinct.
        relevant: The pairs of a query and a true label in the pool.
        positives: The pairs in `relevant` whose label this step moves closer to the query.
    """

    rows: Int[np.ndarray, " query"]
    pool: Int[np.ndarray, " key"]
    relevant: Pairs
    positives: Pairs
    label_sets: sparse.csr_matrix

    def disjoint_instances(
        self, queries: tuple[int, int], instances: tuple[int, int]
    ) -> Bool[np.ndarray, "query instance"]:
        """Mark, for each query, the other instances of the batch that share no label with the query."""
        first, second = self.label_sets[slice(*queries)], self.label_sets[slice(*instances)]
        disjoint: np.ndarray = (first @ second.T).toarray() == 0
        disjoint[np.arange(*queries)[:, None] == np.arange(*instances)] = False
        return disjoint


class Batches:
    """Draws the batches of a training. Each epoch visits all instances, in random order or cluster by cluster.

    Args:
        batch_size: Number of queries in a step. The batch sizes of an epoch differ by at most one query.
        positives: Number of true labels drawn for each query; 0: all true labels.
        hard_negatives: Number of mined labels drawn for each query. None: the pool is the whole label space.
        label_weights: Weights with which positives are drawn, without replacement. None: all labels have equal weight.
    """

    def __init__(
        self,
        label_sets: LabelSets,
        labels: int,
        rows: Int[np.ndarray, " row"],
        batch_size: int,
        positives: int,
        hard_negatives: int | None,
        seed: int,
        label_weights: Float[np.ndarray, " label"] | None = None,
    ) -> None:
        self._relevance = label_sets.to_csr(labels)
        self._labels = labels
        self._rows = rows
        self._positives, self._hard_negatives = positives, hard_negatives
        self._seed = seed
        self._weights = None if label_weights is None else np.maximum(label_weights, _LEAST_WEIGHT)
        self.per_epoch = -(-len(rows) // batch_size)
        self._epoch, self._order = -1, rows
        self._clusters: Int[np.ndarray, " instance"] | None = None

    def at(self, step: int, mined: HardNegatives | None, clusters: Int[np.ndarray, " instance"] | None = None) -> Batch:
        """Return the batch of a step.

        Args:
            clusters: The cluster of each instance of the dataset, -1 for a held-out instance. An epoch visits
                one cluster after the other, in random order, so that similar queries are in one batch (NGAME).
        """
        rows = self._queries(step, clusters)
        sets = self._relevance[rows]
        query = np.repeat(np.arange(len(rows)), np.diff(sets.indptr))
        chosen = self._choose_positives(query, sets.indices, step)
        if self._hard_negatives is None:
            pool = np.arange(self._labels)
        else:
            drawn = [sets.indices[chosen]]
            if mined is not None:
                drawn.append(mined.draw(rows, self._hard_negatives, generator(self._seed, Purpose.NEGATIVES, step)))
            pool = np.unique(np.concatenate(drawn)).astype(np.int64)
        place = np.searchsorted(pool, sets.indices)
        in_pool = pool[np.minimum(place, len(pool) - 1)] == sets.indices if len(pool) else np.zeros(len(query), bool)
        return Batch(
            rows=rows,
            pool=pool,
            relevant=Pairs(query[in_pool], place[in_pool]),
            positives=Pairs(query[chosen], place[chosen]),
            label_sets=sets,
        )

    def _queries(self, step: int, clusters: Int[np.ndarray, " instance"] | None) -> Int[np.ndarray, " query"]:
        epoch, number = divmod(step, self.per_epoch)
        if epoch != self._epoch or clusters is not self._clusters:
            self._epoch, self._clusters, self._order = epoch, clusters, self._shuffle(epoch, clusters)
        start, stop = (len(self._order) * place // self.per_epoch for place in (number, number + 1))
        return self._order[start:stop]

    def _shuffle(self, epoch: int, clusters: Int[np.ndarray, " instance"] | None) -> Int[np.ndarray, " row"]:
        random = generator(self._seed, Purpose.ORDER, epoch)
        order = random.permutation(self._rows)
        if clusters is None:
            return order
        numbers = clusters[order]
        if numbers.min() < 0:
            raise ValueError("clusters: expected a cluster for each instance to train on, found -1")
        turn = random.permutation(numbers.max() + 1)
        return order[np.argsort(turn[numbers], kind="stable")]

    def _choose_positives(
        self, query: Int[np.ndarray, " pair"], label: Int[np.ndarray, " pair"], step: int
    ) -> Int[np.ndarray, " chosen"]:
        """Draw the positives: shuffle the pairs of each query, and return the first few pairs of each query.

        Weighted draws sort the pairs by Exp(1) / weight, so the probability that a pair comes first is proportional to
        its weight.
        """
        if self._positives == 0:
            return np.arange(len(query))
        random = generator(self._seed, Purpose.POSITIVES, step)
        if self._weights is None:
            sort_key = random.random(len(query))
        else:
            sort_key = random.standard_exponential(len(query)) / self._weights[label]
        order = np.lexsort((sort_key, query))
        first = np.searchsorted(query, query)
        chosen: np.ndarray = np.sort(order[np.arange(len(query)) - first < self._positives])
        return chosen
