"""Candidates and their features, computed from a memory as the service computes them from a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from recollect.index_builder.bundle_tables import read_field
from recollect.service.lexical.index import LexicalIndex
from recollect.service.lexical.postings import invert
from recollect.service.lexical.word_index import WordIndex
from recollect.service.predictor.scoring import score_labels, weigh_keys
from recollect.service.predictor.searcher import Neighbours, join_parts
from recollect.service.ranking.candidates import (
    ALL_FEATURES,
    FEATURES,
    Candidates,
    LabelFacts,
    Searches,
    find_candidates,
)
from recollect.service.ranking.names import Names
from recollect.trainer.memory.label_keys import LabelKeys
from recollect.trainer.memory.memory import Memory
from recollect.trainer.memory.search import nearest, nearest_among

# Number of queries whose features are computed together.
_BLOCK_QUERIES = 64


class Block(NamedTuple):
    """The candidates of some queries.

    Attributes:
        first: The number of the first query.
        queries: Number of queries.
        candidates: Their candidates; the queries are numbered from 0.
    """

    first: int
    queries: int
    candidates: Candidates


class CandidateSource:
    """Finds the candidates of texts in a memory, or in a memory without some of its instances.

    Args:
        memory: The memory.
        with_words: Whether the features of a lexical index are computed.

    Attributes:
        texts: The texts of the instances.
        features: Names of the features.
    """

    def __init__(self, memory: Memory, with_words: bool) -> None:
        self._memory = memory
        self.texts = list(read_field(memory.folder / "instances.jsonl", "text"))
        labels = list(read_field(memory.folder / "labels.jsonl", "text"))
        self._names = Names.of(labels)
        self.features = ALL_FEATURES if with_words else FEATURES
        self._postings = invert(self.texts) if with_words else None
        self._label_words = WordIndex(invert(labels), len(labels)) if with_words else None
        self._values = memory.values

    def find(
        self, texts: Sequence[str], vectors: Float[np.ndarray, "query dim"], absent: Int[np.ndarray, " absent"]
    ) -> Iterator[Block]:
        """Yield the candidates of all queries, block by block.

        Args:
            texts: The queries.
            vectors: Their vectors.
            absent: Rows of instances that the memory lacks: neither their keys, nor their share in label keys, counts
                or words.
        """
        memory, defaults = self._memory, self._memory.defaults
        top_b, temperature, lambda_ = int(defaults["top_b"]), defaults["temperature"], defaults["lambda"]
        present = np.ones(memory.plan.instances, dtype=bool)
        present[absent] = False
        label_sets = memory.label_sets.where(present)
        facts = LabelFacts(np.bincount(label_sets.indices, minlength=memory.plan.labels), self._names)
        words = self._words_without(absent)
        text_keys = memory.keys[memory.plan.instances :]
        label_keys = LabelKeys(text_keys, memory.instance_keys, label_sets, defaults["label_key_alpha"]).filled()
        all_instances = nearest_among(vectors, memory.instance_keys, np.flatnonzero(present), top_b)
        all_labels = nearest(vectors, label_keys, top_b)
        for first in range(0, len(texts), _BLOCK_QUERIES):
            block = slice(first, first + _BLOCK_QUERIES)
            queries = texts[block]
            instances, labels = (Neighbours(*(part[block] for part in found)) for found in (all_instances, all_labels))
            nearest_keys = join_parts(instances, labels, memory.plan.instances, top_b, lambda_)
            votes = score_labels(weigh_keys(nearest_keys, temperature, self._values), lambda_, self._values)
            by_words = None if words is None else words.search_each(queries)
            searches = Searches.of(instances, labels, by_words, temperature, self._values)
            yield Block(first, len(queries), find_candidates(queries, searches, votes, self._values, facts))

    def _words_without(self, absent: Int[np.ndarray, " absent"]) -> LexicalIndex | None:
        if self._postings is None or self._label_words is None:
            return None
        rows = absent.tolist()
        instances = WordIndex(self._postings, len(self.texts)).remove(rows, [self.texts[row] for row in rows])
        return LexicalIndex(instances, self._label_words)
