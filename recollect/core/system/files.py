"""Files: written durably and renamed into place when complete, and found without the hidden files of other programs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic_core import from_json

from recollect.core.errors import OutputError

# Names of files and folders that file systems and desktops add, beside those that begin with a dot, such as `.DS_Store`
# and `._a.txt`.
HIDDEN = ("lost+found", "Thumbs.db", "desktop.ini")


def read_json(path: Path) -> Any:
    """The content of a JSON file. Any wrong content, also deeply nested lists, is a ValueError."""
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
    """Save an array that is computed block by block, and map it; an OSError names the file.

    The blocks are written, not copied to a mapped file: a write to a mapped file on a full disk kills the process.
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


def find_files(folder: Path, pattern: str = "*") -> list[Path]:
    """The files and folders in a folder that match a pattern, sorted, without hidden ones; none without the folder."""
    return sorted(path for path in folder.glob(pattern) if not (path.name.startswith(".") or path.name in HIDDEN))


@contextlib.contextmanager
def filled_folder(folder: Path, error: type[Exception] = OutputError) -> Iterator[Path]:
    """Fill a folder that is absent or empty, apart from hidden files. Missing folders on its path are created.

    Yields a temporary folder, whose content moves into the folder at the end of the context. The temporary folder is
    inside, because the folder may be a mount point or a link, or its parent may be read-only. If the context fails,
    nothing is left.
    """
    target = Path(os.path.realpath(folder))
    found = "a file" if target.is_file() else next((f"{path.name} in it" for path in find_files(target)), None)
    if found is not None:
        raise error(f"{folder}: expected no such folder, or an empty one; found {found}: remove it or name another one")
    is_new, incoming = not target.exists(), target / ".incoming"
    shutil.rmtree(incoming, ignore_errors=True)  # left by a process that was killed
    try:
        incoming.mkdir(parents=True)
        yield incoming
        for path in find_files(incoming):
            path.rename(target / path.name)
        incoming.rmdir()
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                target.rmdir()
        raise


def clear_folder(folder: Path) -> None:
    """Remove the content of a folder, but not the folder itself, which may be a mount point or a link."""
    for path in find_files(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def flush_files(folder: Path) -> None:
    """Flush to disk the files that other code has written into a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
