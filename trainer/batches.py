"""Which queries a step sees, which of their labels it pulls closer, and which labels it pushes away.

Every draw comes from a generator seeded by (seed, purpose, number of the step or epoch): the sampler's whole state is
the step, every process draws the same, and a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from scipy import sparse
from torch import Tensor

from trainer.dataset import LabelSets
from trainer.negatives import HardNegatives
from trainer.randomness import Purpose, generator


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
    """All steps of a training: the instances in random order, epoch after epoch.

    Args:
        label_sets: Of every instance of the dataset.
        labels: How many labels there are.
        rows: The instances to train on.
        batch_size: Queries a step; batches of an epoch differ by one query at most.
        positives: True labels drawn for each query; 0: all.
        hard_negatives: Mined labels drawn for each query. None: the pool is the whole label space.
        seed: Decides every draw.
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
    ) -> None:
        self._relevance = label_sets.to_csr(labels)
        self._labels = labels
        self._rows = rows
        self._positives, self._hard_negatives = positives, hard_negatives
        self._seed = seed
        self.per_epoch = -(-len(rows) // batch_size)
        self._epoch, self._order = -1, rows

    def at(self, step: int, mined: HardNegatives | None) -> Batch:
        """The batch of a step, the first of which is 0."""
        rows = self._queries(step)
        sets = self._relevance[rows]
        query = np.repeat(np.arange(len(rows)), np.diff(sets.indptr))
        chosen = self._choose_positives(query, step)
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

    def _queries(self, step: int) -> Int[np.ndarray, " query"]:
        epoch, number = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order = generator(self._seed, Purpose.ORDER, epoch).permutation(self._rows)
            self._epoch = epoch
        start, stop = (len(self._order) * place // self.per_epoch for place in (number, number + 1))
        return self._order[start:stop]

    def _choose_positives(self, query: Int[np.ndarray, " pair"], step: int) -> Int[np.ndarray, " chosen"]:
        """Which pairs to pull closer: the first few of each query, once its pairs are shuffled."""
        if self._positives == 0:
            return np.arange(len(query))
        order = np.lexsort((generator(self._seed, Purpose.POSITIVES, step).random(len(query)), query))
        first = np.searchsorted(query, query)
        chosen: np.ndarray = np.sort(order[np.arange(len(query)) - first < self._positives])
        return chosen
