"""Checks of single values in a dataset file: texts, uids and label positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.errors import DatasetError


def text_problem(text: object) -> str | None:
    """The reason why a dataset may not contain `text`; None if the text is valid."""
    if not isinstance(text, str):
        return f"expected a string, found {type(text).__name__}"
    if not text or text.isspace():
        return "the text is empty; add words or remove the row"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the text contains half of a surrogate pair, which is not a character; correct or remove the text"
    return None


def text_field(record: dict[str, Any], field: str, path: Path, number: int) -> str:
    """Read a field that must hold a valid text.

    Args:
        record: The JSON object.
        field: Name of the field.
        path: The file, for error messages.
        number: Line number of the record, from 1, for error messages.

    Raises:
        DatasetError: If the field is missing or holds no valid text.
    """
    if field not in record:
        raise DatasetError(f"{path}:{number}: expected the field {field!r}, found {sorted(record)}")
    if problem := text_problem(record[field]):
        raise DatasetError(f"{path}:{number}: {field!r}: {problem}")
    return str(record[field])


def uid_field(record: dict[str, Any], path: Path, number: int, default: str | None = None) -> str:
    """Read the field `uid`: a non-empty string, or an integer, which becomes a string.

    Args:
        record: The JSON object.
        path: The file, for error messages.
        number: Line number of the record, from 1, for error messages.
        default: The uid of a record without the field; None if every record needs the field.

    Raises:
        DatasetError: If the uid is missing or invalid.
    """
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
    """Check that a value is a label position.

    Args:
        position: The value.
        labels: Number of labels.
        path: The file, for error messages.
        number: Line number of the value, from 1, for error messages.

    Raises:
        DatasetError: If the value is not an integer from 0 to `labels` - 1.
    """
    if not isinstance(position, int) or isinstance(position, bool):
        raise DatasetError(f"{path}:{number}: expected a label position, found {position!r}")
    if not 0 <= position < labels:
        raise DatasetError(
            f"{path}:{number}: label position {position} is out of range; expected 0 to {labels - 1} "
            f"({labels:,} labels)"
        )
    return position
