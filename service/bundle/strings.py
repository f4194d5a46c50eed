"""Strings that map: a million uids or texts open in a millisecond and cost no memory until they are read.

A table is two arrays: `<name>.utf8.npy`, all strings joined, and `<name>.offsets.npy`, where each one starts.
"""

from __future__ import annotations

import array
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from service.bundle.arrays import map_array, map_offsets, save_array
from service.bundle.manifest import table_files


class StringTable:
    """A read-only sequence of strings over mapped arrays."""

    def __init__(self, utf8: UInt8[np.ndarray, " byte"], offsets: Int[np.ndarray, " offset"]) -> None:
        self._utf8, self._offsets = utf8.data, offsets.data  # whose items come quicker than an array's

    @classmethod
    def open(cls, folder: Path, name: str, rows: int) -> StringTable:
        """Map a table of `rows` strings.

        Raises:
            BundleError: If its files are not those of such a table.
        """
        utf8_file, offsets_file = table_files(name)
        utf8 = map_array(folder / utf8_file, "uint8")
        return cls(utf8, map_offsets(folder / offsets_file, rows, len(utf8)))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        return self.raw(row).decode(errors="replace")  # a forged table must not fail the requests that meet it

    def raw(self, row: int) -> bytes:
        """The row's UTF-8."""
        return bytes(self._utf8[self._offsets[row] : self._offsets[row + 1]])

    def sorted_rows(self) -> Int[np.ndarray, " row"]:
        """Rows in the order of their UTF-8, for `find`."""
        return np.array(sorted(range(len(self)), key=self.raw), dtype=np.int32)

    def find(self, string: str, sorted_rows: Int[np.ndarray, " row"]) -> int | None:
        """The row that holds `string`; the first of several, None if none does."""
        found = self.find_all([string], sorted_rows)
        return int(found[0]) if len(found) else None

    def find_all(self, strings: Iterable[str], sorted_rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " found"]:
        """The rows that hold any of some strings, in no order; a string that no row holds is passed over.

        A binary search for the middle one of them parts the others into those before it and those after.
        """
        wanted = sorted({string.encode("utf-8", "surrogatepass") for string in strings})
        rows, found = sorted_rows.data, []
        spans = [(0, len(wanted), 0, len(rows))]
        while spans:
            first, last, low, high = spans.pop()
            if first == last or low == high:
                continue
            middle = (first + last) // 2
            at = bisect_left(rows, wanted[middle], low, high, key=self.raw)
            if at < high and self.raw(rows[at]) == wanted[middle]:
                found.append(rows[at])
            spans += [(first, middle, low, at), (middle + 1, last, at, high)]
        return np.array(found, dtype=np.int32)


def write_table(folder: Path, name: str, strings: Iterable[str]) -> StringTable:
    """Write a table and open it; the strings are streamed, only their UTF-8 is held."""
    utf8, offsets = bytearray(), array.array("q", [0])
    for string in strings:
        utf8 += string.encode()
        offsets.append(len(utf8))
    utf8_file, offsets_file = table_files(name)
    save_array(folder / utf8_file, np.frombuffer(utf8, dtype=np.uint8))
    save_array(folder / offsets_file, np.frombuffer(offsets, dtype=np.int64))
    return StringTable.open(folder, name, len(offsets) - 1)
