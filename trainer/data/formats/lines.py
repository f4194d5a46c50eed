"""Lines of plain and gzip files. Errors name the file and the line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.errors import DatasetError


def find_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of `names` that exists in `folder`; None if none exists."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def require_file(folder: Path, names: tuple[str, ...]) -> Path:
    """The first of `names` that exists in `folder`.

    Raises:
        DatasetError: If none exists.
    """
    path = find_file(folder, names)
    if path is None:
        found = f"{' or '.join(names)}, found neither" if len(names) > 1 else f"{names[0]}, found no such file"
        raise DatasetError(f"{folder}: expected {found}; write this file, or name another folder")
    return path


def read_texts(path: Path, rule: TextRule) -> Iterator[str]:
    """Yield the text of each line."""
    for number, line in read_lines(path):
        yield rule.check(line, f"{path}:{number}")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line number, from 1, with the line. The line break is removed."""
    for number, line in _read_bytes(path):
        yield number, _decode(line, path, number)


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line number, from 1, with the JSON object of the line. Blank lines are skipped."""
    for number, line in _read_bytes(path):
        if not line or line.isspace():
            continue
        text = _decode(line, path, number)
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{path}:{number}: expected one JSON object, found broken JSON: {error}") from None
        if not isinstance(record, dict):
            raise DatasetError(f"{path}:{number}: expected a JSON object, found {type(record).__name__}")
        yield number, record


def _read_bytes(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line number, from 1, with the bytes of the line. The line break is removed."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DatasetError(
            f"{path}: the gzip stream breaks after line {number} ({error}); copy the file again"
        ) from None


def _decode(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path}:{number}: expected UTF-8, found byte 0x{line[error.start]:02x} at column {error.start + 1}; "
            "convert the file, for example with iconv"
        ) from None
