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
    def of(cls, found: Sequence[tuple[Float[np.ndarray, " _"], Int[np.ndarray, " _"]]], top_b: int) -> Neighbours:
        """Join the lists of several queries: similarities and keys, at most `top_b` for each query."""
        similarities = np.full((len(found), top_b), -np.inf, dtype=np.float32)
        keys = np.full((len(found), top_b), -1, dtype=np.int64)
        for query, (values, own) in enumerate(found):
            similarities[query, : len(own)], keys[query, : len(own)] = values, own
        return cls(similarities, keys)

    @property
    def arrays(self) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]]:
        """Both arrays, for `recollect/core/kernels.py`."""
        return np.ascontiguousarray(self.similarities, np.float32), np.ascontiguousarray(self.keys, np.int64)

    def first(self, top_b: int) -> Neighbours:
        """The first keys of each query."""
        return Neighbours(self.similarities[:, :top_b], self.keys[:, :top_b])


def join_parts(found: Neighbours, labels: Neighbours, instances: int, top_b: int, lambda_: float) -> Neighbours:
    """The top-b keys of the kinds of keys that lambda gives weight to (RAE-XMC, Eq. 5 and 8).

    Args:
        found: The top-b instance keys.
        labels: The top-b label keys, by the positions of the labels.
        instances: Number of instance keys; label keys are numbered after them.
        top_b: Number of keys to keep of both kinds together.
        lambda_: Weight of instances against labels; at 1 only instance keys are kept, at 0 only label keys.
    """
    if lambda_ == 1:
        return found
    nothing = Neighbours(found.similarities[:, :0], found.keys[:, :0])
    return merge(found if lambda_ > 0 else nothing, labels, top_b, shift=instances)


def merge(first: Neighbours, second: Neighbours, top_b: int, shift: int = 0) -> Neighbours:
    """Merge two lists of keys into the `top_b` best keys; at equal similarity, keys of `first` come first.

    `shift` is added to the keys of `second`.
    """
    return Neighbours(*kernels.merge(*first.arrays, *second.arrays, shift, top_b))
