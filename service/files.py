"""Durable files: flushed to disk, and renamed into place when complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic_core import from_json


def read_json(path: Path) -> Any:
    """The content of a JSON file. A file of deeply nested lists is an error as any other wrong content.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not JSON.
    """
    return from_json(path.read_bytes())


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a temporary file, then rename it into place."""
    incoming = path.with_name(f".{path.name}-incoming")
    with incoming.open("w", encoding="utf-8") as file:
        file.write(text)
        flush(file)
    incoming.replace(path)


def save_array(path: Path, array: np.ndarray) -> None:
    """Save an array, and fail if the disk is full; `np.save` can lose its last bytes without an error."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
        flush(file)


def save_rows(path: Path, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Save an array that is computed block by block, and map it.

    The blocks are written, not copied to a mapped file: a write to a mapped file on a full disk kills the process.

    Raises:
        OSError: If the disk is full. The error names the file.
    """
    try:
        with path.open("wb") as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype=dtype).data)
            flush(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> int:
    """Write records as lines of JSON, and return their number."""
    count = 0
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
        flush(file)
    return count


def flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def flush_files(folder: Path) -> None:
    """Flush to disk the files that other code has written into a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
