"""Training examples of the ranker: the candidates of instances, answered by a memory that lacks their whole fold.

A memory that lacks only the query itself would reveal its labels: such a label has one instance fewer than it has for
all other queries. A memory that lacks the whole fold treats true and other labels alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from service.bundle.values import Values
from service.lexical.index import LexicalIndex
from service.lexical.word_index import QueryTerms
from service.predictor.scoring import cast_votes, rank
from service.predictor.searcher import Neighbours, search_parts
from service.ranking.candidates import Searches, Voted, find_candidates
from service.ranking.candidates import Values as LabelValues
from service.ranking.evidence import Found
from service.ranking.features import LabelFacts, compute_features
from service.ranking.names import Names
from trainer.label_keys import LabelKeys
from trainer.memory import Memory
from trainer.search import nearest, nearest_among

# Number of queries whose features are computed together.
_BLOCK_QUERIES = 64
WORD_TEMPERATURE = 0.05


@dataclass(frozen=True)
class Examples:
    """Candidates with their features, by query.

    Attributes:
        query: The number of each candidate's query.
        label: The label of each candidate.
        score: The votes for the candidate.
        features: A row for each candidate; the columns are those of `names`.
        names: Names of the features.
    """

    query: Int[np.ndarray, " candidate"]
    label: Int[np.ndarray, " candidate"]
    score: Float[np.ndarray, " candidate"]
    features: Float[np.ndarray, "candidate feature"]
    names: tuple[str, ...]


class PartialMemory:
    """A memory without some of its instances. It answers queries as the bundle of such a memory does."""

    def __init__(self, memory: Memory, present: Bool[np.ndarray, " instance"], names: Names, words=None) -> None:
        self._memory, self._words = memory, words
        self._rows = np.flatnonzero(present)
        self._label_keys = LabelKeys(
            memory.keys[memory.plan.instances :],
            memory.instance_keys,
            memory.label_sets.where(present),
            memory.defaults["label_key_alpha"],
        ).filled()
        kept = np.repeat(present, np.diff(memory.value_indptr))
        counts = np.bincount(memory.value_indices[kept], minlength=memory.plan.labels)
        self._facts = LabelFacts(counts, names)

    def examples(self, vectors, texts: Sequence[str], block=_BLOCK_QUERIES, **kw) -> Examples:
        memory, defaults = self._memory, self._memory.defaults
        top_b, temperature, lambda_ = int(defaults["top_b"]), defaults["temperature"], defaults["lambda"]
        instances = Neighbours(*nearest_among(vectors, memory.instance_keys, self._rows, top_b))
        labels = Neighbours(*nearest(vectors, self._label_keys, top_b))
        values = Values(memory.value_indptr, memory.value_indices, memory.plan.labels)
        lv = LabelValues(memory.value_indptr, memory.value_indices, memory.plan.labels)
        out = []
        for start in range(0, len(texts), block):
            part = slice(start, start + block)
            i, l = (Neighbours(n.similarities[part], n.keys[part]) for n in (instances, labels))
            found = search_parts(lambda *_: i, lambda *_: l, memory.plan.instances, vectors[part], top_b, lambda_)
            ranking = rank(cast_votes(found, temperature, lambda_, values), values)
            words = {}
            if self._words is not None:
                wi, wl = search_words(self._words, texts[part], top_b)
                words = {"instance_words": wi, "label_words": wl}
            searches = Searches(
                Found.of(i.keys, i.similarities, temperature), Found.of(l.keys, l.similarities, temperature), **words
            )
            c = find_candidates(searches, Voted(ranking.query, ranking.label, ranking.score), lv, **kw)
            f = compute_features(c, texts[part], self._facts)
            names = tuple(f)
            out.append((c.query + start, c.label, c.score, np.column_stack([f[n] for n in names]).astype(np.float32)))
        return Examples(*(np.concatenate(x) for x in zip(*out, strict=True)), names)


def search_words(index: LexicalIndex, texts, top: int) -> tuple[Found, Found]:
    out = []
    terms = [QueryTerms.of(text) for text in texts]
    for part in (index.instances, index.labels):
        keys = np.full((len(texts), top), -1, np.int64)
        sims = np.full((len(texts), top), -np.inf, np.float32)
        for n, t in enumerate(terms):
            s, r = part.search(t, top)
            keys[n, : len(r)], sims[n, : len(r)] = r, s
        out.append(Found.of(keys, sims, WORD_TEMPERATURE))
    return out[0], out[1]
