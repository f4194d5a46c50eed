"""Values: the labels that each instance votes for, as a compressed sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Shaped


@dataclass(frozen=True)
class Values:
    """The labels that each instance votes for: instance i votes for `indices[indptr[i] : indptr[i + 1]]`."""

    indptr: Int[np.ndarray, " offset"]
    indices: Int[np.ndarray, " pair"]
    labels: int

    @property
    def instances(self) -> int:
        return len(self.indptr) - 1


def gather_rows(
    indptr: Int[np.ndarray, " offset"], indices: Shaped[np.ndarray, " pair"], rows: Int[np.ndarray, " row"]
) -> tuple[Int[np.ndarray, " entry"], Shaped[np.ndarray, " entry"]]:
    """Gather rows of a compressed sparse matrix: for each entry, its row's place in `rows`, and its column number."""
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    row = np.repeat(np.arange(len(rows)), counts)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, indices[starts[row] + nth]
