"""Lines of files, plain or gzip, with errors that name the file and the line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.data.dataset import text_problem
from trainer.errors import DatasetError


def first_existing(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of `names` that `folder` holds."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def require(folder: Path, names: tuple[str, ...]) -> Path:
    """The first of `names` that `folder` holds.

    Raises:
        DatasetError: If it holds none of them.
    """
    path = first_existing(folder, names)
    if path is None:
        raise DatasetError(
            f"{folder}: expected {' or '.join(names)}, found neither"
            if len(names) > 1
            else f"{folder}: expected {names[0]}, found no such file"
        )
    return path


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line's number, from 1, and its bytes without the line feed."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DatasetError(
            f"{path}: the gzip stream breaks after line {number} ({error}); copy the file again"
        ) from None


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Each line's number and its text, one text a line."""
    for number, line in lines(path):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise invalid_utf8(path, number, error) from None
        if problem := text_problem(text):
            raise DatasetError(f"{path}:{number}: {problem}")
        yield number, text


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number and its JSON object; blank lines are passed over."""
    for number, line in lines(path):
        if not line or line.isspace():
            continue
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise invalid_utf8(path, number, error) from None
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{path}:{number}: expected one JSON object, found broken JSON: {error}") from None
        if not isinstance(record, dict):
            raise DatasetError(f"{path}:{number}: expected a JSON object, found {type(record).__name__}")
        yield number, record


def invalid_utf8(path: Path, number: int, error: UnicodeDecodeError) -> DatasetError:
    return DatasetError(
        f"{path}:{number}: expected UTF-8, found byte 0x{error.object[error.start]:02x} "
        f"at column {error.start + 1}; convert the file, for example with iconv"
    )


def text_field(record: dict[str, Any], field: str, path: Path, number: int) -> str:
    """A field that must hold a text."""
    if field not in record:
        raise DatasetError(f"{path}:{number}: expected the field {field!r}, found {sorted(record)}")
    if problem := text_problem(record[field]):
        raise DatasetError(f"{path}:{number}: {field!r}: {problem}")
    return str(record[field])


def uid_field(record: dict[str, Any], path: Path, number: int, default: str | None = None) -> str:
    """The uid: a non-empty string, or an integer that is taken as one."""
    uid = default if record.get("uid") is None else record["uid"]
    if isinstance(uid, int) and not isinstance(uid, bool):
        return str(uid)
    if uid is None:
        found = "null" if "uid" in record else sorted(record)
        raise DatasetError(f"{path}:{number}: expected the field 'uid', found {found}")
    if problem := text_problem(uid):
        raise DatasetError(f"{path}:{number}: 'uid': {problem}")
    return str(uid)


def check_position(position: object, labels: int, path: Path, number: int) -> int:
    """A label position.

    Raises:
        DatasetError: If it is no integer from 0 to `labels` - 1.
    """
    if not isinstance(position, int) or isinstance(position, bool):
        raise DatasetError(f"{path}:{number}: expected a label position, found {position!r}")
    if not 0 <= position < labels:
        raise DatasetError(
            f"{path}:{number}: label position {position} is out of range; expected 0 to {labels - 1}, "
            f"as there are {labels:,} labels"
        )
    return position
