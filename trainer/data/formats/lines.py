"""Files of a dataset: their names, their lines and their records. Errors name the file and the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recollect.core import text_lines
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
    """Yield each line number, from 1, with the line; see `recollect.core.text_lines`."""
    return text_lines.read_lines(path, DatasetError)


def read_table(path: Path, required: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row number of a CSV file with a header, from 1, with the row.

    Raises:
        DatasetError: If a column is missing, or a row has another number of values than the header.
    """
    lines = text_lines.read_lines(path, DatasetError, keep_ends=True)
    columns, rows = text_lines.read_csv((line for _, line in lines), str(path), DatasetError)
    if not set(required) <= set(columns):
        raise DatasetError(f"{path}: expected a header with {', '.join(required)}, found {', '.join(columns)}")
    yield from enumerate(rows, start=1)


def read_records(path: Path, unique: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line number, from 1, with the JSON object of the line. Blank lines are skipped.

    With `unique`, an object in which a name stands twice is an error.
    """
    return text_lines.read_objects(path, DatasetError, unique)
