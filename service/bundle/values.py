"""Values: the labels that each instance votes for, and their transpose, as compressed sparse matrices."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped


class ValueArrays(NamedTuple):
    """The labels of all instances as plain arrays, for compiled loops.

    Attributes:
        offsets: Instance i of the bundle votes for `labels[offsets[i] : offsets[i + 1]]`.
        labels: Positions of labels, as int32.
        live_offsets: The same for live instances, which are numbered after those of the bundle.
        live_labels: Positions of labels, as int32.
        live_log_counts: The logarithm of each live instance's count; empty if every count is 1.
        removed: Whether each label was removed, so that votes for it do not count; empty if no label was.
    """

    offsets: Int[np.ndarray, " offset"]
    labels: Int[np.ndarray, " pair"]
    live_offsets: Int[np.ndarray, " live_offset"]
    live_labels: Int[np.ndarray, " live_pair"]
    live_log_counts: Float[np.ndarray, " live"]
    removed: Bool[np.ndarray, " label"]


class Values(ABC):
    """The labels that each instance votes for.

    Attributes:
        labels: Number of labels.
    """

    labels: int

    @property
    @abstractmethod
    def instances(self) -> int:
        """Number of instances."""

    @abstractmethod
    def arrays(self) -> ValueArrays:
        """All values as plain arrays."""

    @abstractmethod
    def gather(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        """The votes of some instances: each instance's place in `rows`, in rising order, and the label."""

    @abstractmethod
    def log_counts_of(self, keys: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."] | float:
        """The logarithm of the count of each key. The key of a label, and the missing key -1, have the count 1."""


class Voters(ABC):
    """The instances that vote for each label."""

    @property
    @abstractmethod
    def pairs(self) -> int:
        """The number of votes of all instances, or more."""

    @abstractmethod
    def counts(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        """The number of instances that vote for each label."""

    @abstractmethod
    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        """The votes for some labels, in no particular order: the label's place in `labels`, and the instance."""


@dataclass(frozen=True)
class SparseValues(Values):
    """Values as a matrix: instance i votes for `indices[indptr[i] : indptr[i + 1]]`.

    Attributes:
        labels: Number of labels.
    """

    indptr: Int[np.ndarray, " offset"]
    indices: Int[np.ndarray, " pair"]
    labels: int

    @property
    def instances(self) -> int:
        return len(self.indptr) - 1

    def arrays(self) -> ValueArrays:
        return self._arrays

    @functools.cached_property
    def _arrays(self) -> ValueArrays:
        offsets, labels = (
            np.ascontiguousarray(each, dtype) for each, dtype in ((self.indptr, np.int64), (self.indices, np.int32))
        )
        return ValueArrays(
            offsets=offsets,
            labels=labels,
            live_offsets=np.zeros(1, dtype=np.int64),
            live_labels=np.empty(0, dtype=np.int32),
            live_log_counts=np.empty(0),
            removed=np.empty(0, dtype=np.bool_),
        )

    def gather(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        return gather_rows(self.indptr, self.indices, rows)

    def log_counts_of(self, keys: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."] | float:
        return 0.0


@dataclass(frozen=True)
class SparseVoters(Voters):
    """Voters as a matrix: label l gets votes of `indices[indptr[l] : indptr[l + 1]]`."""

    indptr: Int[np.ndarray, " offset"]
    indices: Int[np.ndarray, " pair"]

    @property
    def pairs(self) -> int:
        return len(self.indices)

    def counts(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        counts: np.ndarray = self.indptr[labels + 1] - self.indptr[labels]
        return counts

    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        return gather_rows(self.indptr, self.indices, labels)


def gather_rows(
    indptr: Int[np.ndarray, " offset"], indices: Shaped[np.ndarray, " pair"], rows: Int[np.ndarray, " row"]
) -> tuple[Int[np.ndarray, " entry"], Shaped[np.ndarray, " entry"]]:
    """Gather rows of a compressed sparse matrix: for each entry, its row's place in `rows`, and its column number."""
    row, entry = spans(indptr[rows], indptr[rows + 1] - indptr[rows])
    return row, indices[entry]


def spans(
    starts: Int[np.ndarray, " span"], counts: Int[np.ndarray, " span"]
) -> tuple[Int[np.ndarray, " entry"], Int[np.ndarray, " entry"]]:
    """The entries of some spans, each a start and a number of entries: the place of the span, and the entry."""
    span = np.repeat(np.arange(len(starts)), counts)
    nth = np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts)
    return span, starts[span] + nth
