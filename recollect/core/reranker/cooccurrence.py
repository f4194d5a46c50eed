"""Co-occurrence: for each label, the labels that its instances often have, too.

Row m has the labels l with the largest P(l | m), the share of the instances of m that also have l. The sum of the votes
for all m, times P(l | m), is evidence for a label l that few instances have. No live entry changes the rows, and a
compaction keeps them, so that it changes no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt16

from recollect.core.bundle.arrays import map_array, map_offsets, map_positions
from recollect.core.bundle.files import COOCCURRENCE_FILES
from recollect.core.bundle.values import spans
from recollect.core.system.files import save_array

# A share of 1.
WHOLE = 65_535


class Cooccurrence(NamedTuple):
    """Label m has the row `offsets[m]` to `offsets[m + 1]`. Labels without a row have no offset, as all live ones."""

    offsets: Int[np.ndarray, " offset"] = np.zeros(1, dtype=np.int64)
    labels: Int[np.ndarray, " entry"] = np.empty(0, dtype=np.int32)
    shares: UInt16[np.ndarray, " entry"] = np.empty(0, dtype=np.uint16)  # in 65,535ths

    @classmethod
    def open_with(cls, open_file: Callable[..., Any], labels: int) -> Cooccurrence:
        """Open the files of a bundle, each with `open_file`, as `Components.open` opens files."""
        offsets, others, shares = COOCCURRENCE_FILES
        related = open_file(map_positions, others, None, labels)
        entries = len(related)
        starts = open_file(map_offsets, offsets, labels, entries)
        return cls(starts, related, open_file(map_array, shares, "uint16", entries))

    def take(self, labels: Int[np.ndarray, " label"]) -> Cooccurrence:
        """The rows of some labels, in this order, without the other labels; -1 for a label without a row."""
        known = len(self.offsets) - 1
        if not known:  # of a bundle whose ranker reads no rows
            return Cooccurrence(np.zeros(len(labels) + 1, dtype=np.int64))
        numbers = np.full(known, -1, dtype=np.int32)
        numbers[labels[labels >= 0]] = np.flatnonzero(labels >= 0)
        sizes = np.where(labels < 0, 0, np.diff(self.offsets)[labels])
        row, entry = spans(self.offsets[labels], sizes)
        other = numbers[self.labels[entry]]
        kept = other >= 0
        offsets = np.cumsum(np.append(0, np.bincount(row[kept], minlength=len(labels))))
        return Cooccurrence(offsets, other[kept], self.shares[entry][kept])

    @property
    def arrays(self) -> tuple[Int[np.ndarray, " offset"], Int[np.ndarray, " entry"], UInt16[np.ndarray, " entry"]]:
        """The argument of a loop, which does not take a named tuple."""
        return self.offsets, self.labels, self.shares

    def write(self, folder: Path) -> None:
        for name, array in zip(COOCCURRENCE_FILES, self, strict=True):
            save_array(folder / name, array)
