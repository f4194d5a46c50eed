"""Durable files: flushed to disk, and renamed into place when complete."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

import numpy as np


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
    """Save an array as `np.save` does, and raise an error also if the disk becomes full during the last bytes."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
        flush(file)


def flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def flush_files(folder: Path) -> None:
    """Flush to disk the files that other code has written into a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
