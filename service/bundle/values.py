"""Values: the labels that each instance votes for, as a compressed sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped


@dataclass(frozen=True)
class Values:
    """The labels that each instance votes for: instance i votes for `indices[indptr[i] : indptr[i + 1]]`.

    Attributes:
        labels: Number of labels.
        log_counts: The logarithm of each instance's count. An instance with count n votes as n equal instances do. None
            means that every count is 1.
    """

    indptr: Int[np.ndarray, " offset"]
    indices: Int[np.ndarray, " pair"]
    labels: int
    log_counts: Float[np.ndarray, " instance"] | None = None

    @property
    def instances(self) -> int:
        return len(self.indptr) - 1

    def log_counts_of(self, keys: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."] | float:
        """The logarithm of the count of each key. The key of a label, and the missing key -1, have the count 1."""
        if self.log_counts is None:
            return 0.0
        is_instance = (keys >= 0) & (keys < self.instances)
        return np.where(is_instance, self.log_counts[np.where(is_instance, keys, 0)], 0.0)


def gather_rows(
    indptr: Int[np.ndarray, " offset"], indices: Shaped[np.ndarray, " pair"], rows: Int[np.ndarray, " row"]
) -> tuple[Int[np.ndarray, " entry"], Shaped[np.ndarray, " entry"]]:
    """Gather rows of a compressed sparse matrix: for each entry, its row's place in `rows`, and its column number."""
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    row = np.repeat(np.arange(len(rows)), counts)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, indices[starts[row] + nth]
