"""Examples for the ranker: the candidates of instances that a memory without their whole fold finds.

A memory that lacks only the query itself would reveal the labels of the query: each of them has one instance fewer than
it has for all other queries. A memory that lacks the whole fold treats true and other labels alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from tqdm import tqdm

from index_builder.bundle_tables import read_field
from service.bundle.values import Values
from service.lexical.index import LexicalIndex
from service.lexical.postings import invert
from service.lexical.word_index import WordIndex
from service.predictor.scoring import cast_votes, rank
from service.predictor.searcher import Neighbours, search_parts
from service.predictor.words import TOP_WORDS
from service.ranking.candidates import Searches, Voted, find_candidates
from service.ranking.evidence import Found
from service.ranking.features import FEATURES, WORD_FEATURES, LabelFacts
from service.ranking.names import Names
from service.ranking.ranker import feature_matrix
from trainer.label_keys import LabelKeys
from trainer.memory import Memory
from trainer.search import nearest, nearest_among

# Number of queries whose features are computed together.
_BLOCK_QUERIES = 64


@dataclass(frozen=True)
class Examples:
    """The candidates of some queries: all of them are examples, not only the labels with the most votes.

    Attributes:
        query: The number of each candidate's query, in rising order.
        label: The label of each candidate.
        score: The votes for each candidate.
        features: The features of each candidate, in the order of `names`.
        names: Names of the features.
        true: Whether each candidate is a true label of its query.
    """

    query: Int[np.ndarray, " candidate"]
    label: Int[np.ndarray, " candidate"]
    score: Float[np.ndarray, " candidate"]
    features: Float[np.ndarray, "candidate feature"]
    names: tuple[str, ...]
    true: Bool[np.ndarray, " candidate"]

    def __getitem__(self, candidates: Bool[np.ndarray, " candidate"] | Int[np.ndarray, " chosen"]) -> Examples:
        """Some of the candidates, in the given order."""
        return Examples(
            self.query[candidates],
            self.label[candidates],
            self.score[candidates],
            self.features[candidates],
            self.names,
            self.true[candidates],
        )

    @classmethod
    def join(cls, parts: Sequence[Examples]) -> Examples:
        """Join examples of the same features."""
        return cls(
            np.concatenate([part.query for part in parts]),
            np.concatenate([part.label for part in parts]),
            np.concatenate([part.score for part in parts]),
            np.concatenate([part.features for part in parts]),
            parts[0].names,
            np.concatenate([part.true for part in parts]),
        )


class ExampleSource:
    """Computes examples from a memory.

    Args:
        memory: The memory.
        with_words: Whether the features of a lexical index are computed.
    """

    def __init__(self, memory: Memory, with_words: bool) -> None:
        self._memory = memory
        self._texts = list(read_field(memory.folder / "instances.jsonl", "text"))
        labels = list(read_field(memory.folder / "labels.jsonl", "text"))
        self._names = Names.of(labels)
        self.features = (*FEATURES, *WORD_FEATURES) if with_words else FEATURES
        self._postings = invert(self._texts) if with_words else None
        self._label_words = WordIndex(invert(labels), len(labels)) if with_words else None
        self._truth = memory.label_sets.to_csr(memory.plan.labels)
        self._filtered = memory.filtered_labels.to_csr(memory.plan.labels)  # labels that are removed from answers
        self._values = Values(memory.value_indptr, memory.value_indices, memory.plan.labels)

    def cross(self, rows: Int[np.ndarray, " query"], fold: Int[np.ndarray, " query"]) -> Examples:
        """Compute the examples of instances, each from a memory without all instances of its fold.

        Args:
            rows: The instances, in rising order.
            fold: The fold of each of these instances.
        """
        parts = []
        with tqdm(total=len(rows), unit="query", desc="features", dynamic_ncols=True) as bar:
            for number in np.unique(fold):
                queries = np.flatnonzero(fold == number)
                for part in self._fold(rows[queries]):
                    parts.append(dataclasses.replace(part, query=queries[part.query]))
                    bar.update(min(_BLOCK_QUERIES, bar.total - bar.n))
        joined = Examples.join(parts)
        return joined[np.argsort(joined.query, kind="stable")]

    def _fold(self, rows: Int[np.ndarray, " query"]) -> Iterator[Examples]:
        """Yield the examples of all instances of a fold, block by block."""
        memory, defaults = self._memory, self._memory.defaults
        top_b, temperature, lambda_ = int(defaults["top_b"]), defaults["temperature"], defaults["lambda"]
        partial = _PartialMemory(memory, rows, self._names, self._words_without(rows))
        all_instances, all_labels = partial.search(np.asarray(memory.query_vectors[rows], dtype=np.float32), top_b)
        for start in range(0, len(rows), _BLOCK_QUERIES):
            block = slice(start, start + _BLOCK_QUERIES)
            texts = [self._texts[row] for row in rows[block].tolist()]
            instances, labels = (
                Neighbours(found.similarities[block], found.keys[block]) for found in (all_instances, all_labels)
            )
            nearest_keys = _merge(instances, labels, memory.plan.instances, top_b, lambda_)
            ranking = rank(cast_votes(nearest_keys, temperature, lambda_, self._values), self._values)
            by_instances = Found.by_vectors(instances.keys, instances.similarities, temperature)
            by_labels = Found.by_vectors(labels.keys, labels.similarities, temperature)
            by_words = None if partial.words is None else partial.words.search_each(texts, TOP_WORDS)
            searches = Searches.of(by_instances, by_labels, by_words)
            candidates = find_candidates(searches, Voted(ranking.query, ranking.label, ranking.score), self._values)
            truth, filtered = self._truth[rows[block]], self._filtered[rows[block]]
            examples = Examples(
                query=candidates.query + start,
                label=candidates.label,
                score=candidates.score,
                features=feature_matrix(candidates, texts, partial.facts, self.features),
                names=self.features,
                true=np.asarray(truth[candidates.query, candidates.label]).ravel() > 0,
            )
            yield examples[np.asarray(filtered[candidates.query, candidates.label]).ravel() == 0]

    def _words_without(self, rows: Int[np.ndarray, " absent"]) -> LexicalIndex | None:
        if self._postings is None or self._label_words is None:
            return None
        instances = WordIndex(self._postings, len(self._texts))
        instances.remove(rows.tolist(), [self._texts[row] for row in rows.tolist()])
        return LexicalIndex(instances, self._label_words)


class _PartialMemory:
    """A memory without some of its instances: neither their keys, nor their share in label keys, counts or words.

    Attributes:
        words: The lexical index without these instances; None without a lexical index.
        facts: Properties of the labels without these instances.
    """

    def __init__(
        self, memory: Memory, absent: Int[np.ndarray, " absent"], names: Names, words: LexicalIndex | None
    ) -> None:
        present = np.ones(memory.plan.instances, dtype=bool)
        present[absent] = False
        label_sets = memory.label_sets.where(present)
        texts = memory.keys[memory.plan.instances :]
        self._rows, self._instance_keys = np.flatnonzero(present), memory.instance_keys
        self._label_keys = LabelKeys(
            texts, memory.instance_keys, label_sets, memory.defaults["label_key_alpha"]
        ).filled()
        self.facts = LabelFacts(np.bincount(label_sets.indices, minlength=memory.plan.labels), names)
        self.words = words

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> tuple[Neighbours, Neighbours]:
        """The nearest instances, and the nearest labels by their positions."""
        instances = nearest_among(vectors, self._instance_keys, self._rows, top_b)
        return Neighbours(*instances), Neighbours(*nearest(vectors, self._label_keys, top_b))


def _merge(instances: Neighbours, labels: Neighbours, count: int, top_b: int, lambda_: float) -> Neighbours:
    """The nearest keys, as the service merges them for a lambda."""
    return search_parts(lambda *_: instances, lambda *_: labels, count, instances.similarities, top_b, lambda_)
