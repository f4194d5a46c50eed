"""Examples for the ranker: the candidates of instances, each found in a memory without the whole fold of the instance.

A memory that lacks only the query itself would reveal the labels of the query: each of them has one instance fewer than
it has for all other queries. A memory that lacks the whole fold treats true and other labels alike. Candidates and
features are computed from a memory as the service computes them from a bundle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core.neighbours import Found, Neighbours
from recollect.core.reranker.candidates import ALL_FEATURES, CLASSIFIER, FEATURES, find_candidates
from recollect.core.reranker.classifier import Classifier
from recollect.core.reranker.label_facts import LabelFacts
from recollect.core.scoring import weigh
from recollect.core.system.console import progress_bar
from recollect.core.words.index import LexicalIndex
from recollect.core.words.names import Names
from recollect.core.words.postings import invert
from recollect.core.words.terms import Words
from recollect.core.words.word_index import WordIndex
from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.left_out_votes import default_voting
from recollect.index_builder.reranker.classifier import fit_classifier
from recollect.index_builder.reranker.cooccurrence import count_cooccurrence
from recollect.trainer.memory.label_keys import LabelKeys
from recollect.trainer.memory.memory import Memory
from recollect.trainer.memory.search import nearest, nearest_among

# Number of queries whose features are computed together.
_BLOCK_QUERIES = 64
# Instances are few if the memory has so many times as many.
_FEW = 5
# The fields of `Examples` with a row for each candidate.
_COLUMNS = ("query", "label", "score", "features", "true")


@dataclass(frozen=True)
class Examples:
    """The candidates of some queries: all of them are examples, not only the labels with the most votes."""

    query: Int[np.ndarray, " candidate"]  # number of the query, in rising order
    label: Int[np.ndarray, " candidate"]  # in rising order for each query
    score: Float[np.ndarray, " candidate"]  # the votes
    features: Float[np.ndarray, "candidate feature"]
    names: tuple[str, ...]  # of the features
    true: Bool[np.ndarray, " candidate"]

    def __getitem__(self, candidates: Bool[np.ndarray, " candidate"] | Int[np.ndarray, " chosen"]) -> Examples:
        """Some of the candidates, in the given order."""
        return dataclasses.replace(self, **{name: getattr(self, name)[candidates] for name in _COLUMNS})

    def with_feature(self, name: str, values: Float[np.ndarray, " candidate"]) -> Examples:
        """The examples with one more feature."""
        return dataclasses.replace(self, features=np.column_stack([self.features, values]), names=(*self.names, name))

    @property
    def training_counts(self) -> Int[np.ndarray, " candidate"]:
        """Number of training instances of each label, without the fold of the query."""
        return self.features[:, self.names.index("training_count")].astype(np.int64)

    @classmethod
    def join(cls, parts: Sequence[Examples]) -> Examples:
        joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        return dataclasses.replace(parts[0], **joined)


class ExampleSource:
    """Computes examples from a memory, on request with the features of a lexical index."""

    def __init__(self, memory: Memory, with_words: bool) -> None:
        names = ALL_FEATURES if with_words else FEATURES
        self._memory, self._features = memory, tuple(name for name in names if name != CLASSIFIER)
        self._columns = [ALL_FEATURES.index(name) for name in self._features]
        self.texts = list(read_field(memory.folder / "instances.jsonl", "text"))
        labels = list(read_field(memory.folder / "labels.jsonl", "text"))
        self._names = Names.of(labels)
        self._postings = invert(self.texts) if with_words else None
        self._label_words = WordIndex(invert(labels), len(labels)) if with_words else None
        self._values, self._truth = memory.values, memory.relevance
        self._filtered = memory.filtered_labels.to_csr(memory.plan.labels)  # labels that are removed from answers

    def cross(self, rows: Int[np.ndarray, " query"], fold: Int[np.ndarray, " query"]) -> Examples:
        """Compute the examples of instances in rising order, each from a memory without all instances of its fold."""
        parts = []
        with progress_bar(len(rows), "query", "features") as bar:
            for number in np.unique(fold):
                queries = np.flatnonzero(fold == number)
                for block, examples in self._of_fold(rows[queries]):
                    parts.append(dataclasses.replace(examples, query=queries[block][examples.query]))
                    bar.update(len(queries[block]))
        joined = Examples.join(parts)
        return joined[np.lexsort((joined.label, joined.query))]

    def fit_classifier(self, absent: Int[np.ndarray, " query"], threads: int) -> Classifier:
        """Fit linear classifiers to all instances without some rows."""
        return fit_classifier(self._memory, self.texts, absent, threads)

    def with_classifiers(
        self, examples: Examples, rows: Int[np.ndarray, " query"], fold: Int[np.ndarray, " query"], threads: int
    ) -> Examples:
        """Add the scores of linear classifiers to the examples of instances.

        The classifiers are fitted without all these instances if they are few, otherwise without those of a fold.
        """
        words = Words.of(self.texts[row] for row in rows.tolist())
        offsets = np.searchsorted(examples.query, np.arange(len(rows) + 1))
        groups = np.zeros_like(fold) if len(rows) * _FEW <= len(self.texts) else fold
        scores = np.empty(len(examples.query), dtype=np.float32)
        for number in np.unique(groups):
            own = (groups == number)[examples.query]
            classifier = self.fit_classifier(rows[groups == number], threads)
            scores[own] = classifier.scores(words, offsets, examples.label)[own]
        return examples.with_feature(CLASSIFIER, scores)

    def _of_fold(self, absent: Int[np.ndarray, " query"]) -> Iterator[tuple[slice, Examples]]:
        """Yield the examples of blocks of instances, whose queries are numbered from 0 in each block.

        The memory lacks all these instances: neither their keys, nor their share in label keys, counts or words.
        """
        memory, defaults, values = self._memory, self._memory.defaults, self._values
        how = default_voting(memory)
        present = np.ones(memory.plan.instances, dtype=bool)
        present[absent] = False
        label_sets = memory.label_sets.where(present)
        counts = np.bincount(label_sets.indices, minlength=memory.plan.labels)
        together = count_cooccurrence(label_sets, memory.plan.labels)
        facts = LabelFacts(counts.astype(np.int32), self._names, together)
        words, vectors = self._words_without(absent), memory.queries(absent)
        text_keys = memory.keys[memory.plan.instances :]
        label_keys = LabelKeys(text_keys, memory.instance_keys, label_sets, defaults["label_key_alpha"]).filled()
        all_instances = nearest_among(vectors, memory.instance_keys, np.flatnonzero(present), how.top_b)
        all_labels = nearest(vectors, label_keys, how.top_b)
        for first in range(0, len(absent), _BLOCK_QUERIES):
            block = slice(first, first + _BLOCK_QUERIES)
            rows = absent[block]
            query_words = Words.of(self.texts[row] for row in rows.tolist())
            instances, labels = (Neighbours(*(part[block] for part in keys)) for keys in (all_instances, all_labels))
            found = Found(instances, labels, None if words is None else words.search(query_words))
            candidates = find_candidates(query_words, found, weigh(found, how, values), how, values, facts)
            pairs = candidates.query, candidates.label
            examples = Examples(
                query=candidates.query,
                label=candidates.label,
                score=candidates.features[:, 0].astype(np.float64),
                features=candidates.features[:, self._columns],
                names=self._features,
                true=np.asarray(self._truth[rows][pairs]).ravel() > 0,
            )
            yield block, examples[np.asarray(self._filtered[rows][pairs]).ravel() == 0]

    def _words_without(self, absent: Int[np.ndarray, " absent"]) -> LexicalIndex | None:
        if self._postings is None or self._label_words is None:
            return None
        rows = absent.tolist()
        instances = WordIndex(self._postings, len(self.texts)).remove(rows, [self.texts[row] for row in rows])
        return LexicalIndex(instances, self._label_words)
