"""Mapped arrays: an .npy file is mapped into memory instead of parsed, and its type, length and content are checked.

A checksum detects a file that was altered after publishing. A bundle that was forged before publishing has correct
checksums. Opening a bundle therefore also checks that each offset and each position points into its array. A wrong
file is a BundleError.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int

from recollect.core.errors import BundleError, opening


def map_array(path: Path, dtype: str, length: int | None = None) -> np.ndarray:
    """Map an array with one dimension and `length` elements; with `length` None, any number of elements."""
    with opening(path):  # `np.load` would also accept archives and pickled objects
        mapped: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    if mapped.dtype != dtype or mapped.ndim != 1 or length not in (None, len(mapped)):
        raise BundleError(
            f"{path}: expected {dtype} of shape ({'any' if length is None else length},), "
            f"found {mapped.dtype} of shape {mapped.shape}; build the bundle again"
        )
    return mapped.view(np.ndarray)  # a slice of a plain array is faster than one of a memmap


def map_offsets(path: Path, rows: int, end: int) -> Int[np.ndarray, " offset"]:
    """Map a file of `rows` + 1 offsets into memory: the start of each row in an array of `end` elements, then `end`."""
    offsets = map_array(path, "int64", rows + 1)
    if offsets[0] != 0 or offsets[-1] != end:
        raise BundleError(
            f"{path}: expected offsets from 0 to {end:,}, found {offsets[0]:,} to {offsets[-1]:,}; "
            "build the bundle again"
        )
    decreasing = offsets[1:] < offsets[:-1]
    if decreasing.any():
        row = int(decreasing.argmax())
        raise BundleError(
            f"{path}: row {row}: expected an end at or after its start {offsets[row]:,}, found {offsets[row + 1]:,}; "
            "build the bundle again"
        )
    return offsets


def map_positions(path: Path, length: int | None, below: int) -> Int[np.ndarray, " position"]:
    """Map an array of row numbers that point into a table of `below` rows."""
    positions = map_array(path, "int32", length)
    unsigned = positions.view(np.uint32)  # a negative number becomes a huge one: one pass finds both
    if unsigned.max(initial=0) >= below:
        row = int(unsigned.argmax())
        raise BundleError(
            f"{path}: row {row}: expected a position from 0 to {below - 1:,}, found {positions[row]:,}; "
            "build the bundle again"
        )
    return positions
