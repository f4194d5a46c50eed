"""The votes for instances that are left out of the memory: by vectors with exact search, and by words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_matrix

from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.compaction.served_memory import ServedMemory
from recollect.index_builder.recall import exact_neighbours
from recollect.service.bundle.values import Values
from recollect.service.lexical.index import LexicalIndex
from recollect.service.predictor.scoring import Ranking, Votes, key_weights, votes_of
from recollect.service.predictor.searcher import Neighbours, search_parts
from recollect.service.predictor.words import word_votes
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.left_out import label_neighbours
from recollect.trainer.memory.memory import Memory

_BLOCK_QUERIES = 256
# Number of keys to find by words for each query: more than the keys that vote, because one is the query itself.
_SEARCHED = 64


def left_out_votes(
    served: ServedMemory, rows: Int[np.ndarray, " query"], index: LexicalIndex | None
) -> Iterator[tuple[slice, Votes, Votes | None]]:
    """Yield the votes for blocks of instances with the memory's default options, without the instances themselves.

    An instance whose key stands for n instances leaves n - 1 of them in the memory.

    Args:
        served: The memory that votes, and all instances.
        rows: The instances, in rising order.
        index: The lexical index; None leaves out the votes by words.

    Yields:
        The places of the block in `rows`, the votes by vectors, and the votes by words.
    """
    lambda_, temperature = served.memory.defaults["lambda"], served.memory.defaults["temperature"]
    values = served.values
    found = _nearest_keys(served, rows)
    texts = [] if index is None else _texts_of(served.full, rows)
    for start in range(0, len(rows), _BLOCK_QUERIES):
        block = slice(start, start + _BLOCK_QUERIES)
        own = served.own[rows[block]]
        nearest = Neighbours(found.similarities[block], found.keys[block])
        weights = key_weights(nearest.similarities, temperature, _log_counts(served, values, nearest, own))
        by_words = None
        if index is not None:
            shared = _leave_out(served, Neighbours(*index.search(texts[block], _SEARCHED, lambda_)), own)
            by_words = word_votes(shared, lambda_, values, _log_counts(served, values, shared, own))
        yield block, votes_of(nearest.keys, weights, lambda_, values), by_words


def remove_filtered(ranking: Ranking, filtered: csr_matrix) -> Ranking:
    """A ranking without the labels that the dataset removes from the answers to each query."""
    labels = filtered.shape[1]
    pairs = ranking.query * np.int64(labels) + ranking.label
    kept = ~np.isin(pairs, LabelSets.of(filtered).codes(labels))
    return Ranking(ranking.query[kept], ranking.label[kept], ranking.score[kept])


def _nearest_keys(served: ServedMemory, rows: Int[np.ndarray, " query"]) -> Neighbours:
    """The top-b keys of the queries with the memory's default options, without the queries themselves."""
    memory, full = served.memory, served.full
    defaults, top_b = memory.defaults, int(memory.defaults["top_b"])

    def search_instances(vectors: np.ndarray, top_b: int) -> Neighbours:
        found = _leave_out(served, exact_neighbours(memory.instance_keys, vectors, top_b + 1), served.own[rows])
        return Neighbours(found.similarities[:, :top_b], found.keys[:, :top_b])

    def search_labels(_: np.ndarray, top_b: int) -> Neighbours:
        found = label_neighbours(full, rows, full.defaults["label_key_alpha"], top_b)
        return Neighbours(found.similarities, found.keys)

    vectors = full.queries(rows)
    return search_parts(search_instances, search_labels, memory.plan.instances, vectors, top_b, defaults["lambda"])


def _texts_of(memory: Memory, rows: Int[np.ndarray, " query"]) -> list[str]:
    wanted = set(rows.tolist())
    texts = read_field(memory.folder / "instances.jsonl", "text")
    return [text for row, text in enumerate(texts) if row in wanted]


def _leave_out(served: ServedMemory, found: Neighbours, own: Int[np.ndarray, " query"]) -> Neighbours:
    """The found keys without the query's own key, which moves to the end as a missing key.

    A key that also stands for other instances stays.
    """
    alone = own >= 0 if served.counts is None else (own >= 0) & (served.counts[own] == 1)
    out = (found.keys == own[:, None]) & alone[:, None]
    order = np.argsort(out, axis=1, kind="stable")
    similarities, keys = np.where(out, -np.inf, found.similarities), np.where(out, -1, found.keys)
    return Neighbours(np.take_along_axis(similarities, order, axis=1), np.take_along_axis(keys, order, axis=1))


def _log_counts(
    served: ServedMemory, values: Values, found: Neighbours, own: Int[np.ndarray, " query"]
) -> Float[np.ndarray, "query found"] | float:
    """The logarithm of the count of each found key, without the query itself."""
    if served.counts is None:
        return 0.0
    is_own = (found.keys == own[:, None]) & (found.keys >= 0)
    others = np.where(is_own, served.counts[np.where(is_own, found.keys, 0)] - 1, 1)
    log_counts: np.ndarray = np.where(is_own, np.log(others), values.log_counts_of(found.keys))
    return log_counts
