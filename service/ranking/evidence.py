"""Evidence: everything that the searches found for the labels of some queries.

Four searches find keys: the nearest instances, the nearest labels, and both by their words if there is a lexical index.
An instance is evidence for each of its labels, a label for itself. The evidence of one search for one label is the best
and the sum of its keys' similarities, the weights of these keys, their number, and the place of the best one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.service.bundle.values import Values
from recollect.service.lexical.index import FoundByWords


@dataclass(frozen=True)
class Found:
    """The keys that one search found for each query, best first. Places without a key have key -1.

    Attributes:
        keys: Rows of the instances, or positions of the labels.
        similarities: Similarity of each key to the query.
        weights: Weight of each key; the weights of each query sum to 1.
    """

    keys: Int[np.ndarray, "query found"]
    similarities: Float[np.ndarray, "query found"]
    weights: Float[np.ndarray, "query found"]

    @classmethod
    def by_vectors(
        cls,
        keys: Int[np.ndarray, "query found"],
        similarities: Float[np.ndarray, "query found"],
        temperature: float,
        log_counts: Float[np.ndarray, "query found"] | float = 0.0,
    ) -> Found:
        """Weigh keys that were found by their vectors: a softmax with the temperature tau and the keys' counts."""
        logits = np.where(keys < 0, -np.inf, similarities.astype(np.float64) / temperature + log_counts)
        largest = logits.max(axis=1, keepdims=True, initial=np.finfo(np.float64).min)
        return cls(keys, similarities, _normalise(np.exp(logits - largest)))

    @classmethod
    def by_words(cls, found: FoundByWords) -> Found:
        """Weigh keys that were found by their words in proportion to the third power of their similarities."""
        powers = np.maximum(found.similarities, 0).astype(np.float64) ** 3
        return cls(found.rows, found.similarities, _normalise(powers))

    @property
    def nearest(self) -> Float[np.ndarray, " query"]:
        """Similarity of the nearest key of each query; NaN for a query without a key."""
        if not self.keys.shape[1]:
            return np.full(len(self.keys), np.nan)
        return np.where(self.keys[:, 0] >= 0, self.similarities[:, 0], np.nan)


@dataclass(frozen=True)
class Pairs:
    """One entry for each key of a search and each label that the key is evidence for, by query, then by place.

    Attributes:
        pair: Number of the pair (query, label): query * number of labels + label.
        place: Place of the key in the list of its query, from 0.
        similarity: Similarity of the key to the query.
        weight: Weight of the key.
    """

    pair: Int[np.ndarray, " entry"]
    place: Int[np.ndarray, " entry"]
    similarity: Float[np.ndarray, " entry"]
    weight: Float[np.ndarray, " entry"]

    @classmethod
    def of_labels(cls, found: Found, labels: int) -> Pairs:
        query, place = np.nonzero(found.keys >= 0)
        key = found.keys[query, place]
        return cls(query * np.int64(labels) + key, place, found.similarities[query, place], found.weights[query, place])

    @classmethod
    def of_instances(cls, found: Found, values: Values) -> Pairs:
        query, place = np.nonzero(found.keys >= 0)
        voter, label = values.gather(found.keys[query, place])
        query, place = query[voter], place[voter]
        pair = query * np.int64(values.labels) + label
        return cls(pair, place, found.similarities[query, place], found.weights[query, place])


@dataclass(frozen=True)
class Support:
    """The evidence of one search for each pair (query, label). A pair without evidence has a count of 0."""

    count: Int[np.ndarray, " pair"]
    weight: Float[np.ndarray, " pair"]
    similarity_sum: Float[np.ndarray, " pair"]
    best_similarity: Float[np.ndarray, " pair"]
    best_place: Float[np.ndarray, " pair"]

    @classmethod
    def of(cls, entries: Pairs, row: Int[np.ndarray, " entry"], pairs: int) -> Support:
        """Sum up the entries of each pair; `row` is the number of each entry's pair, below `pairs`."""
        best = np.full(pairs, -1)
        best[row[::-1]] = np.arange(len(row))[::-1]  # the first entry of a pair is written last
        found = best >= 0
        return cls(
            count=np.bincount(row, minlength=pairs),
            weight=np.bincount(row, weights=entries.weight, minlength=pairs),
            similarity_sum=np.bincount(row, weights=entries.similarity, minlength=pairs),
            best_similarity=_at(entries.similarity, best, found),
            best_place=_at(entries.place, best, found),
        )

    def __getitem__(self, pairs: Bool[np.ndarray, " pair"]) -> Support:
        """The evidence for the marked pairs."""
        return Support(**{field: values[pairs] for field, values in vars(self).items()})


def _at(values: np.ndarray, entry: Int[np.ndarray, " pair"], found: np.ndarray) -> Float[np.ndarray, " pair"]:
    """The value of each pair's entry; NaN for a pair without one."""
    chosen = np.full(len(entry), np.nan)
    chosen[found] = values[entry[found]]
    return chosen


def _normalise(weights: Float[np.ndarray, "query found"]) -> Float[np.ndarray, "query found"]:
    normalised: np.ndarray = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return normalised
