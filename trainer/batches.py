"""Which queries a step sees, which of their labels it pulls closer, and which labels it pushes away.

Every draw comes from a generator seeded by (seed, purpose, number of the step or epoch): the sampler's whole state is
the step, every process draws the same, and a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import sparse
from torch import Tensor

from trainer.data.split import LabelSets
from trainer.negatives import HardNegatives
from trainer.randomness import Purpose, generator

# For labels of no weight, or less, as the propensities of fewer than 3 instances give them: these are drawn last.
_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True)
class Pairs:
    """(query of the batch, key of the pool) pairs, by query."""

    query: Int[np.ndarray, " pair"]
    key: Int[np.ndarray, " pair"]

    def mask(
        self, queries: tuple[int, int], keys: tuple[int, int], device: torch.device | str = "cpu"
    ) -> Bool[Tensor, "query key"]:
        """The pairs of a range of queries and a range of keys, as a matrix; the pairs alone travel to the device."""
        first, last = np.searchsorted(self.query, queries)
        query, key = self.query[first:last] - queries[0], self.key[first:last] - keys[0]
        within = (key >= 0) & (key < keys[1] - keys[0])
        mask = torch.zeros((queries[1] - queries[0], keys[1] - keys[0]), dtype=torch.bool, device=device)
        mask[tuple(torch.from_numpy(place[within]).to(device) for place in (query, key))] = True
        return mask


@dataclass(frozen=True)
class Batch:
    """One step's queries and its pool of labels.

    Attributes:
        rows: The instances that are this step's queries.
        pool: Label positions, each once.
        relevant: The queries' true labels among the pool.
        positives: Those of them that this step pulls closer.
        label_sets: The label set of each query, in full.
    """

    rows: Int[np.ndarray, " query"]
    pool: Int[np.ndarray, " key"]
    relevant: Pairs
    positives: Pairs
    label_sets: sparse.csr_matrix

    def strangers(self, queries: tuple[int, int], instances: tuple[int, int]) -> Bool[np.ndarray, "query instance"]:
        """Which of the batch's instances share no label with each query; nobody is a stranger to itself."""
        first, second = self.label_sets[slice(*queries)], self.label_sets[slice(*instances)]
        strangers: np.ndarray = (first @ second.T).toarray() == 0
        strangers[np.arange(*queries)[:, None] == np.arange(*instances)] = False
        return strangers


class Batches:
    """All steps of a training: the instances in random order, or cluster by cluster, epoch after epoch.

    Args:
        label_sets: Of every instance of the dataset.
        labels: How many labels there are.
        rows: The instances to train on.
        batch_size: Queries a step; batches of an epoch differ by one query at most.
        positives: True labels drawn for each query; 0: all.
        hard_negatives: Mined labels drawn for each query. None: the pool is the whole label space.
        seed: Decides every draw.
        label_weights: Positives are drawn in proportion to them, without replacement. None: every label alike.
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
        """The batch of a step, the first of which is 0.

        Args:
            step: Its number.
            mined: What hard negatives are drawn from.
            clusters: The cluster of each instance of the dataset, -1 where it is not trained on. Its epoch goes
                through the clusters in random order, so that neighbours share a batch (NGAME).
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
            raise ValueError("clusters: expected one for each instance that is trained on, found -1")
        turn = random.permutation(numbers.max() + 1)
        return order[np.argsort(turn[numbers], kind="stable")]

    def _choose_positives(
        self, query: Int[np.ndarray, " pair"], label: Int[np.ndarray, " pair"], step: int
    ) -> Int[np.ndarray, " chosen"]:
        """Which pairs to pull closer: the first few of each query, once its pairs are shuffled.

        Weighted draws are a race: whoever arrives after Exp(1) / weight wins as often as its share of the weights.
        """
        if self._positives == 0:
            return np.arange(len(query))
        random = generator(self._seed, Purpose.POSITIVES, step)
        if self._weights is None:
            arrival = random.random(len(query))
        else:
            arrival = random.standard_exponential(len(query)) / self._weights[label]
        order = np.lexsort((arrival, query))
        first = np.searchsorted(query, query)
        chosen: np.ndarray = np.sort(order[np.arange(len(query)) - first < self._positives])
        return chosen
