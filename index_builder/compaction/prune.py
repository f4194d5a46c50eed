"""`prune`: instances that the other keys answer hand their votes to a similar instance.

Each instance is a query to the other keys that are left. It is answered if each of its labels gets at least a fiftieth
of the score of the best other label. Its count then goes to its heir: the nearest instance that shares at least a third
of the labels of both. An instance without an heir stays, and each label keeps a number of instances.

Without heirs, the labels of dense regions would lose votes, and other labels would get better ranks.

Blocks of instances are answered one after the other: a block gets no votes from keys that a block before it left out.
The instances of a block are far apart in the dataset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import faiss
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_matrix

from recollect.index_builder.compaction.served_memory import ServedMemory
from recollect.index_builder.faiss_index import Keys, build_index, lists
from recollect.index_builder.recall import exact_neighbours
from recollect.service.predictor.scoring import Ranking, cast_votes, rank
from recollect.service.predictor.searcher import Neighbours, search_parts
from recollect.trainer.data.split import LabelSets

# Least score of a label of an answered instance, as a share of the score of the best other label.
_LEAST_SHARE = 0.02
# Least share of common labels among all labels of an instance and its heir (Jaccard index), and number of nearest
# instances among which the heir is.
_COMMON_LABELS, _HEIRS = 1 / 3, 50
_BLOCK_INSTANCES = 512
# More keys than this are searched approximately, because the time of exact search for all keys grows with the square of
# their number. Such a search compares one inverted list in 16.
_MOST_EXACT, _LISTS_PER_PROBE = 60_000, 16


class Pruning:
    """Decides block by block which instances stay.

    Args:
        served: The memory.
        floor: Number of instances that each label keeps, if it has that many.

    Attributes:
        kept: Marks the instances that stay.
        heirs: The heir of each instance; an instance that stays is its own.
        counts: Number of instances that each instance stands for.
    """

    def __init__(self, served: ServedMemory, floor: int) -> None:
        self._memory, self._values, self._floor = served.memory, served.values, floor
        instances, labels = self._memory.plan.instances, self._memory.plan.labels
        self.kept, self.heirs = np.ones(instances, dtype=bool), np.arange(instances)
        self.counts = np.ones(instances) if served.counts is None else served.counts.astype(np.float64)
        self._label_sets = self._memory.label_sets.to_csr(labels)
        self._left = np.bincount(self._memory.value_indices, minlength=labels)
        label_keys = self._memory.label_keys()
        self._search_instances = _searcher(self._memory.instance_keys)
        self._search_labels = _searcher(label_keys.filled() if label_keys.alpha else label_keys)

    def run(self) -> None:
        instances = len(self.kept)
        blocks = -(-instances // _BLOCK_INSTANCES)
        for first in range(blocks):
            self._prune(np.arange(first, instances, blocks))
        while (self.heirs[self.heirs] != self.heirs).any():  # an heir can be left out later
            self.heirs = self.heirs[self.heirs]

    def _prune(self, rows: Int[np.ndarray, " row"]) -> None:
        defaults = self._memory.defaults
        vectors = self._memory.queries(rows)
        others = self._find_others(rows, vectors, int(defaults["top_b"]))
        found = search_parts(
            lambda *_: others,
            self._search_labels,
            len(self.kept),
            vectors,
            int(defaults["top_b"]),
            defaults["lambda"],
        )
        values = dataclasses.replace(self._values, log_counts=np.log(self.counts))
        ranking = rank(cast_votes(found, defaults["temperature"], defaults["lambda"], values), values)
        for place in np.flatnonzero(_answered(ranking, self._label_sets[rows])).tolist():
            self._hand_over(int(rows[place]), others.keys[place])

    def _find_others(
        self, rows: Int[np.ndarray, " row"], vectors: Float[np.ndarray, "row dim"], top_b: int
    ) -> Neighbours:
        """The nearest instances of each row that are left, without the row itself."""
        found = self._search_instances(vectors, top_b + 1)
        out = (found.keys < 0) | (found.keys == rows[:, None]) | ~self.kept[found.keys]
        return Neighbours(np.where(out, -np.inf, found.similarities), np.where(out, -1, found.keys))

    def _hand_over(self, row: int, others: Int[np.ndarray, " other"]) -> None:
        """Leave out an instance, if it has an heir and its labels have enough other instances."""
        labels = self._labels_of(row)
        if (self._left[labels] <= self._floor).any():
            return
        near = others[others >= 0]
        near = near[self.kept[near]][:_HEIRS]  # this block can have left some out
        sets = self._label_sets[near]
        common = np.add.reduceat(np.append(np.isin(sets.indices, labels), 0), sets.indptr[:-1])
        sizes = np.diff(sets.indptr)
        common = np.where(sizes, common, 0)  # `reduceat` gives no 0 for an empty row
        fitting = near[common >= _COMMON_LABELS * (sizes + len(labels) - common)]
        if len(fitting):
            self.kept[row], self.heirs[row] = False, fitting[0]
            self.counts[fitting[0]] += self.counts[row]
            self._left[labels] -= 1

    def _labels_of(self, row: int) -> Int[np.ndarray, " label"]:
        labels: np.ndarray = self._label_sets.indices[self._label_sets.indptr[row] : self._label_sets.indptr[row + 1]]
        return labels


def _answered(ranking: Ranking, truth: csr_matrix) -> Bool[np.ndarray, " row"]:
    """Mark the rows that have labels, each with at least the least share of the best other label's score."""
    rows, labels = truth.shape
    true = np.isin(ranking.query * np.int64(labels) + ranking.label, LabelSets.of(truth).codes(labels))
    least, most_other = np.full(rows, np.inf), np.zeros(rows)
    np.minimum.at(least, ranking.query[true], ranking.score[true])
    np.maximum.at(most_other, ranking.query[~true], ranking.score[~true])
    sizes, found = np.diff(truth.indptr), np.bincount(ranking.query[true], minlength=rows)
    answered: np.ndarray = (sizes > 0) & (found == sizes) & (least >= _LEAST_SHARE * most_other)
    return answered


def _searcher(keys: Keys) -> Callable[[Float[np.ndarray, "query dim"], int], Neighbours]:
    """A search of the keys: exact for a moderate number of keys, approximate for more."""
    if len(keys) <= _MOST_EXACT:
        return lambda vectors, top_b: exact_neighbours(keys, vectors, top_b)
    index, _ = build_index(keys, f"IVF{lists(len(keys))},SQ8", 0, lambda _: None)
    probed = faiss.SearchParametersIVF(nprobe=-(-lists(len(keys)) // _LISTS_PER_PROBE))

    def search(vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
        similarities, found = index.search(vectors, min(top_b, len(keys)), params=probed)
        return Neighbours(np.where(found < 0, -np.inf, similarities), found)

    return search
