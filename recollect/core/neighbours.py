"""Neighbours: the keys that searches found for queries, and how lists of keys are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from recollect.core import kernels


@dataclass(frozen=True)
class Neighbours:
    """The retrieved keys of each query, in order of falling similarity.

    A key is stated by its number. The number of an instance key is the row of the instance in the memory. The number of
    a label key is the number of instances plus the position of the label.
    If a search finds fewer than b keys, the remaining places have key -1 and similarity -inf.
    """

    similarities: Float[np.ndarray, "query top_b"]
    keys: Int[np.ndarray, "query top_b"]

    def __getitem__(self, queries: slice) -> Neighbours:
        return Neighbours(self.similarities[queries], self.keys[queries])

    @classmethod
    def missing(cls, queries: int, top_b: int) -> Neighbours:
        return cls(np.full((queries, top_b), -np.inf, np.float32), np.full((queries, top_b), -1))

    @classmethod
    def of(cls, found: Sequence[tuple[Float[np.ndarray, " _"], Int[np.ndarray, " _"]]], top_b: int) -> Neighbours:
        """Join the lists of several queries: similarities and keys, at most `top_b` for each query."""
        joined = cls.missing(len(found), top_b)
        for query, (similarities, keys) in enumerate(found):
            joined.similarities[query, : len(keys)], joined.keys[query, : len(keys)] = similarities, keys
        return joined

    @property
    def arrays(self) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]]:
        """Both arrays, for `recollect/core/kernels.py`."""
        return np.ascontiguousarray(self.similarities, np.float32), np.ascontiguousarray(self.keys, np.int64)

    def first(self, top_b: int) -> Neighbours:
        """The first keys of each query."""
        return Neighbours(self.similarities[:, :top_b], self.keys[:, :top_b])


@dataclass(frozen=True)
class Found:
    """The keys that the searches found for some queries, best first.

    Attributes:
        instances: The nearest instances.
        labels: The nearest labels, by their positions.
        by_words: The instances and the labels that share words with a query; None without a lexical index.
        admitted: The keys that vote in place of the nearest ones, because a filter excludes labels; None: no filter.
    """

    instances: Neighbours
    labels: Neighbours
    by_words: tuple[Neighbours, Neighbours] | None = None
    admitted: Neighbours | None = None

    def __getitem__(self, queries: slice) -> Found:
        by_words = None if self.by_words is None else (self.by_words[0][queries], self.by_words[1][queries])
        return Found(self.instances[queries], self.labels[queries], by_words)

    def nearest(self, top_b: int, lambda_: float, instances: int) -> Neighbours:
        """The keys that vote by their vectors: the top-b keys (see `join_parts`), or the admitted ones."""
        if self.admitted is not None:
            return self.admitted
        return join_parts(self.instances.first(top_b), self.labels.first(top_b), instances, top_b, lambda_)

    def nearest_by_words(self, lambda_: float, instances: int) -> Neighbours | None:
        """The keys that vote by words: as many of both kinds as were found of each; None without a lexical index."""
        if self.by_words is None:
            return None
        return join_parts(*self.by_words, instances, self.by_words[0].keys.shape[1], lambda_)


def join_parts(
    instance_keys: Neighbours, label_keys: Neighbours, instances: int, top_b: int, lambda_: float
) -> Neighbours:
    """The top-b keys of the kinds that lambda gives weight to (RAE-XMC, Eq. 5 and 8).

    At lambda 1 only instance keys are kept, at 0 only label keys. Label keys are positions of labels; in the result,
    they are numbered after the instances.
    """
    if lambda_ == 1:
        return instance_keys
    return merge(instance_keys if lambda_ > 0 else instance_keys.first(0), label_keys, top_b, shift=instances)


def merge(first: Neighbours, second: Neighbours, top_b: int, shift: int = 0) -> Neighbours:
    """Merge two lists of keys into the `top_b` best keys; at equal similarity, keys of `first` come first.

    `shift` is added to the keys of `second`.
    """
    return Neighbours(*kernels.merge(*first.arrays, *second.arrays, shift, top_b))
