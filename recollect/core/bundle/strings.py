"""Mapped tables of strings: a million uids or texts open in a millisecond and use no memory until they are read.

A table is two arrays: `<name>.utf8.npy`, the joined UTF-8 of all strings, and `<name>.offsets.npy`, their offsets.
"""

from __future__ import annotations

import array
import functools
import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from recollect.core.bundle.arrays import map_array, map_offsets
from recollect.core.bundle.files import table_files
from recollect.core.system.files import save_array

# Number of strings that are sorted at once. A longer sort would stop all other threads, because it holds Python's lock.
_SORTED_TOGETHER = 4_096


class StringTable:
    """A read-only sequence of strings over mapped arrays."""

    def __init__(self, utf8: UInt8[np.ndarray, " byte"], offsets: Int[np.ndarray, " offset"]) -> None:
        self.utf8, self.offsets = utf8, offsets
        self._utf8, self._offsets = utf8.data, offsets.data  # items of a memoryview are read faster

    @classmethod
    def open(cls, folder: Path, name: str, rows: int) -> StringTable:
        """Map a table of `rows` strings."""
        utf8_file, offsets_file = table_files(name)
        utf8 = map_array(folder / utf8_file, "uint8")
        return cls(utf8, map_offsets(folder / offsets_file, rows, len(utf8)))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        return str(self._utf8[self._offsets[row] : self._offsets[row + 1]], "utf-8", "replace")  # never an error

    def raw(self, row: int) -> bytes:
        """The UTF-8 bytes of the string in a row."""
        return bytes(self._utf8[self._offsets[row] : self._offsets[row + 1]])

    def sorted_rows(self) -> Int[np.ndarray, " row"]:
        """All row numbers, sorted by the UTF-8 bytes of their strings; `find` needs this order."""
        return np.array(sorted(range(len(self)), key=self.raw), dtype=np.int32)

    def find(self, string: str, sorted_rows: Int[np.ndarray, " row"]) -> int | None:
        """The row whose string equals `string`: the first one if there are several, None if there is none."""
        found = self.find_all([string], sorted_rows)
        return int(found[0]) if len(found) else None

    def beginning_with(self, prefix: str, sorted_rows: Int[np.ndarray, " row"]) -> Iterator[int]:
        """Yield the rows whose strings begin with `prefix`, in the order of `sorted_rows`."""
        rows, wanted = sorted_rows.data, prefix.encode("utf-8", "surrogatepass")
        for at in range(bisect_left(rows, wanted, key=self.raw), len(rows)):
            if not self.raw(rows[at]).startswith(wanted):
                return
            yield rows[at]

    def find_all(self, strings: Iterable[str], sorted_rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " found"]:
        """The rows whose strings are in `strings`, in no particular order; unknown strings are skipped.

        A binary search finds the row of the middle string. This row splits the sorted rows: smaller strings are
        searched before it, larger strings after it.
        """
        rows, found_rows = sorted_rows.data, []
        unsorted = iter({string.encode("utf-8", "surrogatepass") for string in strings})
        while wanted := sorted(itertools.islice(unsorted, _SORTED_TOGETHER)):
            spans = [(0, len(wanted), 0, len(rows))]
            while spans:
                first, last, low, high = spans.pop()
                if first == last or low == high:
                    continue
                middle = (first + last) // 2
                at = bisect_left(rows, wanted[middle], low, high, key=self.raw)
                if at < high and self.raw(rows[at]) == wanted[middle]:
                    found_rows.append(rows[at])
                spans += [(first, middle, low, at), (middle + 1, last, at, high)]
        return np.array(found_rows, dtype=np.int32)


class UidIndex:
    """Finds the row of a uid in a table, by its hash.

    A bundle has no such index, because answers do not need it. It is built when it is first used, in about a second for
    three million uids, and takes 16 bytes for each.
    """

    def __init__(self, uids: StringTable) -> None:
        self._uids = uids

    @functools.cached_property
    def _by_hash(self) -> tuple[Int[np.ndarray, " uid"], Int[np.ndarray, " uid"]]:
        """The hashes of all uids in rising order, and their rows."""
        hashes = np.fromiter((hash(self._uids.raw(row)) for row in range(len(self._uids))), np.int64, len(self._uids))
        rows = np.argsort(hashes, kind="stable")
        return hashes[rows], rows

    def find(self, uid: str) -> int | None:
        """The row of a uid: the first one if there are several, None if there is none."""
        hashes, rows = self._by_hash
        raw = uid.encode("utf-8", "surrogatepass")
        first, last = hashes.searchsorted(hash(raw)), hashes.searchsorted(hash(raw), side="right")
        return next((row for row in rows[first:last].tolist() if self._uids.raw(row) == raw), None)


def write_table(folder: Path, name: str, strings: Iterable[str]) -> StringTable:
    """Write a string table to its two files, and open the table.

    The strings can be a stream: only their UTF-8 bytes are kept in memory.
    """
    utf8, offsets = bytearray(), array.array("q", [0])
    for string in strings:
        utf8 += string.encode()
        offsets.append(len(utf8))
    utf8_file, offsets_file = table_files(name)
    save_array(folder / utf8_file, np.frombuffer(utf8, dtype=np.uint8))
    save_array(folder / offsets_file, np.frombuffer(offsets, dtype=np.int64))
    return StringTable.open(folder, name, len(offsets) - 1)
