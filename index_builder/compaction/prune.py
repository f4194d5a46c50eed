"""`prune`: instances that the other keys answer are left out.

Each instance is a query to the other keys that are left. If its labels get the highest scores, and the least of these
is above the scores of all other labels by a margin, the instance is left out. A label always keeps a number of
instances, so that rare labels lose none.

Blocks of instances are answered one after the other: a block gets no votes from keys that a block before it left out.
The instances of a block are far apart in the memory, so they are hardly ever neighbours of each other.
"""

from __future__ import annotations

from collections.abc import Callable

import faiss
import numpy as np
from jaxtyping import Bool, Float, Int

from index_builder.compaction.served_memory import ServedMemory
from index_builder.faiss_index import Keys, build_index, lists
from index_builder.recall import exact_neighbours
from service.predictor.scoring import Ranking, cast_votes, rank
from service.predictor.searcher import Neighbours, search_parts
from trainer.data.split import LabelSets

# Least difference between the scores of the last true label and the first other one, as a share of the former.
MARGIN = 0.1
_BLOCK_INSTANCES = 512
# More keys than this are searched approximately, because the time of exact search for all keys grows with the square of
# their number. Such a search compares one inverted list in 16.
_MOST_EXACT, _LISTS_PER_PROBE = 60_000, 16


def find_kept(served: ServedMemory, floor: int) -> Bool[np.ndarray, " instance"]:
    """Mark the instances that stay in the memory.

    Args:
        served: The memory. Each query of the search is an instance, so its own key is left out.
        floor: Number of instances that each label keeps, if it has that many.
    """
    memory, values = served.memory, served.values
    instances, defaults = memory.plan.instances, memory.defaults
    lambda_, temperature, top_b = defaults["lambda"], defaults["temperature"], int(defaults["top_b"])
    search_instances, search_labels = _searcher(memory.instance_keys), _searcher(memory.label_keys())
    kept = np.ones(instances, dtype=bool)
    left = np.bincount(memory.value_indices, minlength=memory.plan.labels)
    truth = memory.label_sets
    blocks = -(-instances // _BLOCK_INSTANCES)
    for first in range(blocks):
        rows = np.arange(first, instances, blocks)

        def search_others(vectors: np.ndarray, top_b: int, rows: np.ndarray = rows) -> Neighbours:
            found = search_instances(vectors, top_b + 1)
            out = (found.keys < 0) | (found.keys == rows[:, None]) | ~kept[found.keys]
            return Neighbours(np.where(out, -np.inf, found.similarities), np.where(out, -1, found.keys))

        vectors = np.asarray(memory.query_vectors[rows], dtype=np.float32)
        found = search_parts(search_others, search_labels, instances, vectors, top_b, lambda_)
        ranking = rank(cast_votes(found, temperature, lambda_, values), values)
        for row in rows[_answered(ranking, truth, rows, values.labels)].tolist():
            labels = truth.indices[truth.indptr[row] : truth.indptr[row + 1]]
            if (left[labels] > floor).all():
                left[labels] -= 1
                kept[row] = False
    return kept


def _answered(
    ranking: Ranking, truth: LabelSets, rows: Int[np.ndarray, " row"], labels: int
) -> Bool[np.ndarray, " row"]:
    """Mark the rows that have labels, all of them ranked above all other labels by the margin."""
    own = truth.to_csr(labels)[rows]
    sizes = np.diff(own.indptr)
    true = np.isin(ranking.query * np.int64(labels) + ranking.label, LabelSets.of(own).codes(labels))
    least, most_other = np.full(len(rows), np.inf), np.zeros(len(rows))
    np.minimum.at(least, ranking.query[true], ranking.score[true])
    np.maximum.at(most_other, ranking.query[~true], ranking.score[~true])
    found = np.bincount(ranking.query[true], minlength=len(rows))
    answered: np.ndarray = (sizes > 0) & (found == sizes) & (most_other <= (1 - MARGIN) * least)
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
