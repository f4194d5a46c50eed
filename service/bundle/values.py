"""Values: the labels that each instance votes for, and their transpose, as compressed sparse matrices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped


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
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    row = np.repeat(np.arange(len(rows)), counts)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, indices[starts[row] + nth]
