"""The votes for instances that are left out of the memory: by vectors with exact search, and by words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_matrix

from recollect.core.neighbours import Neighbours, join_parts
from recollect.core.scoring import Ranking
from recollect.core.words.index import TOP_WORDS, LexicalIndex
from recollect.index_builder.bundle_tables import read_field
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.left_out import instance_neighbours, label_neighbours
from recollect.trainer.memory.memory import Memory

_BLOCK_QUERIES = 256
# Number of keys to find by words for each query: more than the keys that vote, because one is the query itself.
_SEARCHED = 64


def left_out_votes(
    memory: Memory, rows: Int[np.ndarray, " query"], index: LexicalIndex | None
) -> Iterator[tuple[slice, Neighbours, Neighbours | None]]:
    """Yield the keys that vote for blocks of instances with the memory's defaults, without the instances themselves.

    Args:
        memory: The memory that votes.
        rows: The instances, in rising order.
        index: The lexical index; None leaves out the votes by words.

    Yields:
        The places of the block in `rows`, the keys that vote by vectors, and those that vote by words.
    """
    found = _nearest_keys(memory, rows)
    texts = [] if index is None else texts_of(memory, rows)
    for start in range(0, len(rows), _BLOCK_QUERIES):
        block = slice(start, start + _BLOCK_QUERIES)
        by_words = None
        if index is not None:
            shared = index.search(texts[block], memory.defaults["lambda"], _SEARCHED)
            by_words = leave_out(shared, rows[block]).first(TOP_WORDS)
        yield block, found[block], by_words


def remove_filtered(ranking: Ranking, filtered: csr_matrix) -> Ranking:
    """A ranking without the labels that the dataset removes from the answers to each query."""
    labels = filtered.shape[1]
    pairs = ranking.query * np.int64(labels) + ranking.label
    return ranking.where(~np.isin(pairs, LabelSets.of(filtered).codes(labels)))


def _nearest_keys(memory: Memory, rows: Int[np.ndarray, " query"]) -> Neighbours:
    """The top-b keys of the queries with the memory's default options, without the queries themselves."""
    defaults, top_b = memory.defaults, int(memory.defaults["top_b"])
    instances = instance_neighbours(memory, rows, top_b)
    labels = label_neighbours(memory, rows, defaults["label_key_alpha"], top_b)
    return join_parts(instances, labels, memory.plan.instances, top_b, defaults["lambda"])


def texts_of(memory: Memory, rows: Int[np.ndarray, " query"]) -> list[str]:
    wanted = set(rows.tolist())
    texts = read_field(memory.folder / "instances.jsonl", "text")
    return [text for row, text in enumerate(texts) if row in wanted]


def leave_out(found: Neighbours, rows: Int[np.ndarray, " query"]) -> Neighbours:
    """The found keys without the query's own key, which moves to the end as a missing key."""
    out = found.keys == rows[:, None]
    order = np.argsort(out, axis=1, kind="stable")
    similarities, keys = np.where(out, -np.inf, found.similarities), np.where(out, -1, found.keys)
    return Neighbours(np.take_along_axis(similarities, order, axis=1), np.take_along_axis(keys, order, axis=1))
