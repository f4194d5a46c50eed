"""The votes for instances that are left out of the memory: by vectors with exact search, and by words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int
from scipy.sparse import csr_matrix

from recollect.core.neighbours import Found, Neighbours
from recollect.core.options import Voting
from recollect.core.scoring import ScoredLabels
from recollect.core.words.index import TOP_WORDS, LexicalIndex
from recollect.core.words.terms import Words
from recollect.index_builder.bundle_tables import read_field
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.left_out import instance_neighbours, label_neighbours
from recollect.trainer.memory.memory import Memory

_BLOCK_QUERIES = 256
# Number of keys to find by words for each query: more than the keys that vote, because one is the query itself.
_SEARCHED = 64


def left_out_votes(
    memory: Memory, rows: Int[np.ndarray, " query"], index: LexicalIndex | None
) -> Iterator[tuple[slice, Found]]:
    """Yield the keys that are found for blocks of instances, without the instances themselves.

    The rows are in rising order; a block is a slice of them. Without a lexical index, no keys are found by words.
    """
    top_b = int(memory.defaults["top_b"])
    labels = label_neighbours(memory, rows, memory.defaults["label_key_alpha"], top_b)
    nearest = Found(instance_neighbours(memory, rows, top_b), labels)
    texts = [] if index is None else texts_of(memory, rows)
    for start in range(0, len(rows), _BLOCK_QUERIES):
        block = slice(start, start + _BLOCK_QUERIES)
        by_words = None
        if index is not None:
            instances, by_label_words = index.search(Words.of(texts[block]), _SEARCHED)
            by_words = leave_out(instances, rows[block]).first(TOP_WORDS), by_label_words.first(TOP_WORDS)
        yield block, dataclasses.replace(nearest[block], by_words=by_words)


def without_filtered(filtered: csr_matrix, ranking: ScoredLabels) -> Bool[np.ndarray, " row"]:
    """Whether each row stays if the labels go that the dataset removes from the answers to each query."""
    labels = filtered.shape[1]
    pairs = ranking.query * np.int64(labels) + ranking.label
    return ~np.isin(pairs, LabelSets.of(filtered).codes(labels))


def default_voting(memory: Memory, word_weight: float = 0.0) -> Voting:
    """How keys vote with the default options of a memory."""
    defaults = memory.defaults
    return Voting(defaults["lambda"], defaults["temperature"], int(defaults["top_b"]), word_weight)


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
