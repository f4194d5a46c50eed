"""Strings that map: a million uids or texts open in a millisecond and cost no memory until they are read.

A table is two arrays: `<name>.utf8.npy`, all strings joined, and `<name>.offsets.npy`, where each one starts.
"""

from __future__ import annotations

import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from service.arrays import map_array, map_offsets, save_array
from service.manifest import table_files


class StringTable:
    """A read-only sequence of strings over mapped arrays."""

    def __init__(self, utf8: UInt8[np.ndarray, " byte"], offsets: Int[np.ndarray, " offset"]) -> None:
        self._utf8, self._offsets = utf8, offsets

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
        return self._utf8[self._offsets[row] : self._offsets[row + 1]].tobytes()

    def sorted_rows(self) -> Int[np.ndarray, " row"]:
        """Rows in the order of their UTF-8, for `find`."""
        return np.array(sorted(range(len(self)), key=self.raw), dtype=np.int32)

    def find(self, string: str, sorted_rows: Int[np.ndarray, " row"]) -> int | None:
        """The row that holds `string`, by binary search; None if none does."""
        wanted = string.encode("utf-8", "surrogatepass")
        low, high = 0, len(sorted_rows)
        while low < high:
            middle = (low + high) // 2
            if self.raw(int(sorted_rows[middle])) < wanted:
                low = middle + 1
            else:
                high = middle
        if low < len(sorted_rows) and self.raw(row := int(sorted_rows[low])) == wanted:
            return row
        return None


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
