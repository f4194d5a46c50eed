"""Arrays that map: an .npy file opens without being parsed, and is held to its type, its length and its contents.

A checksum tells what was published from what was altered. What was forged before it was published has its checksums
right, so offsets and positions are read through once: none of them leads out of the array that it points into.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int

from service.errors import BundleError, opening


def save_array(path: Path, content: np.ndarray) -> None:
    """Write an .npy file; unlike `np.save`, which leaves its last bytes to C's stdio, it notices a full disk."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(content))
        file.write(np.ascontiguousarray(content).data)


def map_array(path: Path, dtype: str, length: int | None = None) -> np.ndarray:
    """Map a one-dimensional array; `length` None admits any.

    Raises:
        BundleError: If the file is no .npy file, holds Python objects, or is of another type or shape.
    """
    with opening(path):  # not `np.load`, which takes archives and pickles for arrays too
        mapped: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    if mapped.dtype != dtype or mapped.ndim != 1 or length not in (None, len(mapped)):
        raise BundleError(
            f"{path}: expected {dtype} of shape ({'any' if length is None else length},), "
            f"found {mapped.dtype} of shape {mapped.shape}; build the bundle again"
        )
    return mapped


def map_offsets(path: Path, rows: int, end: int) -> Int[np.ndarray, " offset"]:
    """Map where each of `rows` rows starts in an array of `end` elements, and, last, where that array ends.

    Raises:
        BundleError: If the offsets do not rise from 0 to `end`.
    """
    offsets = map_array(path, "int64", rows + 1)
    if offsets[0] != 0 or offsets[-1] != end:
        raise BundleError(
            f"{path}: expected offsets from 0 to {end:,}, found {offsets[0]:,} to {offsets[-1]:,}; "
            "build the bundle again"
        )
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        row = int(falls.argmax())
        raise BundleError(
            f"{path}: row {row}: expected an end at or after its start {offsets[row]:,}, found {offsets[row + 1]:,}; "
            "build the bundle again"
        )
    return offsets


def map_positions(path: Path, length: int, below: int) -> Int[np.ndarray, " position"]:
    """Map positions in a table of `below` rows.

    Raises:
        BundleError: If a position is negative, or past the table's end.
    """
    positions = map_array(path, "int32", length)
    unsigned = positions.view(np.uint32)  # in which a negative position is a huge one: one pass finds both
    if unsigned.max(initial=0) >= below:
        row = int(unsigned.argmax())
        raise BundleError(
            f"{path}: row {row}: expected a position from 0 to {below - 1:,}, found {positions[row]:,}; "
            "build the bundle again"
        )
    return positions
