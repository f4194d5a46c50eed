"""Arrays that grow while other threads read them.

One thread writes at a time. A reader takes a slice, or a `Versions`, and reads it without a lock: later writes do not
change it. Appending takes constant time on average, because a full buffer is replaced by one of twice the size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Shaped

# Number of rows of the first buffer.
_FIRST_ROWS = 64


class GrowingArray:
    """An array to which rows are appended.

    Args:
        dtype: Type of the elements.
        columns: Number of columns; None for an array with one dimension.
        content: The first rows.
    """

    def __init__(self, dtype: type, columns: int | None = None, content: np.ndarray | None = None) -> None:
        self._shape = () if columns is None else (columns,)
        self._buffer = np.empty((_FIRST_ROWS, *self._shape), dtype=dtype)
        self._rows = 0
        if content is not None:
            self.extend(content)

    def __len__(self) -> int:
        return self._rows

    @property
    def content(self) -> Shaped[np.ndarray, " row *column"]:
        """All rows; rows that are appended later are not part of this slice."""
        return self._buffer[: self._rows]

    def append(self, row: np.ndarray | float) -> None:
        self._reserve(1)
        self._buffer[self._rows] = row
        self._rows += 1

    def extend(self, rows: np.ndarray) -> None:
        self._reserve(len(rows))
        self._buffer[self._rows : self._rows + len(rows)] = rows
        self._rows += len(rows)

    def _reserve(self, rows: int) -> None:
        if (needed := self._rows + rows) > len(self._buffer):
            buffer = np.empty((max(2 * len(self._buffer), needed), *self._shape), dtype=self._buffer.dtype)
            buffer[: self._rows] = self.content
            self._buffer = buffer


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of different lengths: row i has the items `items[offsets[i] : offsets[i + 1]]`."""

    offsets: Int[np.ndarray, " offset"]
    items: Shaped[np.ndarray, " item"]

    def __len__(self) -> int:
        return len(self.offsets) - 1


class GrowingRows:
    """Rows of different lengths, to which rows are appended."""

    def __init__(self, dtype: type) -> None:
        self._offsets = GrowingArray(np.int64, content=np.zeros(1, dtype=np.int64))
        self._items = GrowingArray(dtype)

    @property
    def content(self) -> Rows:
        return Rows(self._offsets.content, self._items.content)

    def append(self, row: Shaped[np.ndarray, " item"]) -> None:
        self._items.extend(row)
        self._offsets.append(len(self._items))


class VersionedArray:
    """Integers that change; `snapshot` keeps their present values readable.

    Each change is appended to a list. It refers to the change of the same element before it, so a reader of a snapshot
    goes back from the newest change to the last one that the snapshot has.

    Args:
        base: The values before all changes. Elements can be added after them.
    """

    def __init__(self, base: Int[np.ndarray, " element"]) -> None:
        self._base = base
        self._newest = GrowingArray(np.int64, content=np.full(len(base), -1))
        self._values, self._before = GrowingArray(np.int64), GrowingArray(np.int64)

    def __getitem__(self, element: int) -> int:
        change = int(self._newest.content[element])
        return int(self._base[element] if change < 0 else self._values.content[change])

    def __setitem__(self, element: int, value: int) -> None:
        newest = self._newest.content
        self._values.append(value)
        self._before.append(newest[element])
        newest[element] = len(self._values) - 1  # last, because readers follow it

    def append(self, value: int) -> None:
        self._values.append(value)
        self._before.append(-1)
        self._newest.append(len(self._values) - 1)

    def snapshot(self) -> Versions:
        return Versions(self._base, self._newest.content, self._values.content, self._before)


@dataclass(frozen=True, eq=False)
class Versions:
    """The values of a `VersionedArray` at one time."""

    _base: Int[np.ndarray, " element"]
    _newest: Int[np.ndarray, " element_now"]
    _values: Int[np.ndarray, " change"]
    _before: GrowingArray

    def at(self, element: int) -> int:
        """The value of one element, faster than from an array."""
        change = self._newest.item(element)
        while change >= len(self._values):
            change = self._before.content.item(change)
        return int(self._base.item(element) if change < 0 else self._values.item(change))

    def __getitem__(self, elements: Int[np.ndarray, "..."] | int) -> Int[np.ndarray, "..."]:
        elements = np.asarray(elements)
        flat = elements.reshape(-1)
        change = self._newest[flat]
        while (later := change >= len(self._values)).any():
            change[later] = self._before.content[change[later]]
        found, changed = np.empty(len(flat), dtype=np.int64), change >= 0
        found[changed], found[~changed] = self._values[change[changed]], self._base[flat[~changed]]
        return found.reshape(elements.shape)
