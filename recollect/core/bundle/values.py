"""Values: the labels that each instance votes for, those of the bundle before those of live instances."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

# Rows of different lengths in two parts, those of a bundle and live ones: the offsets and the items of each part.
Rows = tuple[
    Int[np.ndarray, " offset"], Int[np.ndarray, " item"], Int[np.ndarray, " live_offset"], Int[np.ndarray, " live_item"]
]
# The labels of the instances, whether each label was removed, and the number of labels.
ValueArrays = tuple[Rows, Bool[np.ndarray, " label"], int]


@dataclass(frozen=True, eq=False)
class Matrix:
    """Rows of different lengths: row i has the items `indices[indptr[i] : indptr[i + 1]]`."""

    indptr: Int[np.ndarray, " offset"]
    indices: Shaped[np.ndarray, " item"]

    @classmethod
    def empty(cls, dtype: type) -> Matrix:
        return cls(np.zeros(1, dtype=np.int64), np.empty(0, dtype=dtype))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def size_bytes(self) -> int:
        return self.indptr[1:].nbytes + self.indices.nbytes

    def gather(
        self, rows: Int[np.ndarray, " row"], live: Matrix | None = None
    ) -> tuple[Int[np.ndarray, " entry"], Shaped[np.ndarray, " entry"]]:
        """The items of some rows: each row's place in `rows`, in rising order, and the item.

        Args:
            live: Rows that are numbered after those of this matrix.
        """
        is_live = rows >= len(self)
        if live is None or not is_live.any():
            row, entry = spans(self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows])
            return row, self.indices[entry]
        first, second = np.flatnonzero(~is_live), np.flatnonzero(is_live)
        place, item = self.gather(rows[first])
        live_place, live_item = live.gather(rows[second] - len(self))
        places, items = np.concatenate([first[place], second[live_place]]), np.concatenate([item, live_item])
        order = np.argsort(places, kind="stable")
        return places[order], items[order]

    @functools.cached_property
    def arrays(self) -> tuple[Int[np.ndarray, " offset"], Int[np.ndarray, " item"]]:
        """Offsets as int64 and items as int32, for `recollect/core/kernels.py`."""
        return np.ascontiguousarray(self.indptr, np.int64), np.ascontiguousarray(self.indices, np.int32)


@dataclass(frozen=True, eq=False)
class Values:
    """The labels that each instance votes for. Votes for removed labels are left out.

    Attributes:
        bundle_values: The labels of the instances of the bundle.
        labels: Number of labels.
        live: The labels of live instances, which are numbered after those of the bundle.
        live_log_counts: The logarithm of each live instance's count; empty if every count is 1.
        removed: Whether each label was removed; empty if no label was.
    """

    bundle_values: Matrix
    labels: int
    live: Matrix = Matrix.empty(np.int32)
    live_log_counts: Float[np.ndarray, " live"] = field(default_factory=lambda: np.empty(0))
    removed: Bool[np.ndarray, " label"] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))

    @property
    def instances(self) -> int:
        return len(self.bundle_values) + len(self.live)

    @functools.cached_property
    def arrays(self) -> ValueArrays:
        """The argument of a loop that reads values: two matrices, the removed labels, and the number of labels."""
        return (*self.bundle_values.arrays, *self.live.arrays), self.removed, self.labels

    def gather(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        """The votes of some instances: each instance's place in `rows`, in rising order, and the label."""
        place, label = self.bundle_values.gather(rows, self.live)
        if not len(self.removed):
            return place, label
        present = ~self.removed[label]
        return place[present], label[present]


def spans(
    starts: Int[np.ndarray, " span"], counts: Int[np.ndarray, " span"]
) -> tuple[Int[np.ndarray, " entry"], Int[np.ndarray, " entry"]]:
    """The entries of some spans, each a start and a number of entries: the place of the span, and the entry."""
    span = np.repeat(np.arange(len(starts)), counts)
    nth = np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts)
    return span, starts[span] + nth
