"""Live tables: the texts of one kind that were written to a memory, with their vectors.

A replaced or removed row stays in its table. It has the sequence number of the entry that ended it, so a view that was
taken before this entry still reads the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.service.memory.growing import GrowingArray
from recollect.service.memory.sealed_block import BLOCK_ROWS, SealedBlock

# The end of a row that is present.
PRESENT = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Ends:
    """The sequence numbers of the entries that ended rows, and the view that reads them.

    Attributes:
        ends: The sequence number of the entry that ended each row; greater than those of all entries if there is none.
        sequence: The sequence number of the view.
        ended: The number of rows that have ended in the view.
    """

    ends: Int[np.ndarray, " row"]
    sequence: int
    ended: int

    def present(self, rows: Int[np.ndarray, "..."]) -> Bool[np.ndarray, "..."]:
        found: np.ndarray = self.ends[rows] > self.sequence
        return found


class GrowingEnds:
    """The ends of rows, which one thread writes."""

    def __init__(self, rows: int = 0) -> None:
        self._ends = GrowingArray(np.int64, content=np.full(rows, PRESENT))
        self._ended = 0

    def append(self) -> None:
        self._ends.append(PRESENT)

    def end(self, row: int, sequence: int) -> None:
        self._ends.content[row] = sequence
        self._ended += 1

    def is_present(self, row: int) -> bool:
        return bool(self._ends.content[row] == PRESENT)

    def at(self, sequence: int) -> Ends:
        return Ends(self._ends.content, sequence, self._ended)


@dataclass(frozen=True, eq=False)
class LiveRows:
    """The rows of a live table that one view has.

    Attributes:
        count: Number of rows, with those that have ended.
        uids: Uids of at least these rows.
        texts: Their texts.
        vectors: Their unit vectors.
        numbers: The number that each row has in the memory: an instance, or the position of a label.
        ends: Their ends.
        blocks: The codes of the first vectors, in order of their rows.
    """

    count: int
    uids: list[str]
    texts: list[str]
    vectors: Float[np.ndarray, "row dim"]
    numbers: Int[np.ndarray, " row"]
    ends: Ends
    blocks: tuple[SealedBlock, ...]
    _newest: dict[str, int]
    _before: list[int]

    def find(self, uid: str) -> int | None:
        """The present row with a uid."""
        row = self._newest.get(uid, -1)
        while row >= self.count:  # a later write
            row = self._before[row]
        return row if row >= 0 and self.ends.present(np.array(row)) else None

    @property
    def present(self) -> int:
        """Number of rows that have not ended."""
        return self.count - self.ends.ended


class LiveTable:
    """Texts with their vectors, which one thread writes.

    Args:
        dim: Number of dimensions of a vector.
    """

    def __init__(self, dim: int) -> None:
        self.uids: list[str] = []
        self.texts: list[str] = []
        self.numbers = GrowingArray(np.int64)
        self.ends = GrowingEnds()
        self._vectors = GrowingArray(np.float32, dim)
        self._newest: dict[str, int] = {}
        self._before: list[int] = []
        self._blocks: tuple[SealedBlock, ...] = ()

    def __len__(self) -> int:
        return len(self.uids)

    def add(self, uid: str, text: str, vector: Float[np.ndarray, " dim"], number: int) -> int:
        """Append a row, and return it."""
        row = len(self)
        self._vectors.append(vector)
        self.numbers.append(number)
        self.ends.append()
        self.texts.append(text)
        self._before.append(self._newest.get(uid, -1))
        self.uids.append(uid)
        self._newest[uid] = row
        if len(self) % BLOCK_ROWS == 0:
            first = len(self) - BLOCK_ROWS
            self._blocks += (SealedBlock.seal(first, self._vectors.content[first:]),)
        return row

    def find(self, uid: str) -> int | None:
        """The present row with a uid."""
        row = self._newest.get(uid)
        return None if row is None or not self.ends.is_present(row) else row

    def at(self, sequence: int) -> LiveRows:
        """The rows of a view that has all entries up to `sequence`."""
        return LiveRows(
            count=len(self),
            uids=self.uids,
            texts=self.texts,
            vectors=self._vectors.content,
            numbers=self.numbers.content,
            ends=self.ends.at(sequence),
            blocks=self._blocks,
            _newest=self._newest,
            _before=self._before,
        )
