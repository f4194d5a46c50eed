"""Checks of single values in a dataset file: texts, uids and label positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.core.bundle.label_fields import checked_fields
from recollect.core.system.console import print_status
from recollect.core.texts import integer_as_uid, is_blank
from recollect.trainer.errors import DatasetError
from recollect.trainer.settings import UnknownLabels

EMPTY = "the text is empty; add words, or choose --empty-texts drop or keep"


@dataclass(frozen=True)
class TextRule:
    """What a text is: the fields of a record that form it, and whether it may be empty. Also the rules for labels.

    Attributes:
        may_be_empty: Whether a text without a visible character is valid.
        label_language: Language of the names in a SKOS vocabulary; None if the vocabulary has only one.
        unknown_labels: Whether a label of an instance that is not in the vocabulary is refused or dropped.
        seen: Names of the fields of all records and subjects that were read.
        deprecated: URIs of the subjects of a vocabulary that are no labels, because they are deprecated.
    """

    fields: tuple[str, ...] = ()
    may_be_empty: bool = False
    label_language: str | None = None
    unknown_labels: UnknownLabels = "refuse"
    note: Callable[[str], None] = print_status
    seen: set[str] = field(default_factory=set)
    deprecated: set[str] = field(default_factory=set)

    def require_seen(self, path: Path) -> None:
        """Check that some record had each of `fields`.

        Raises:
            DatasetError: If no record had a field.
        """
        if self.seen and (absent := [name for name in self.fields if name not in self.seen]):
            found = ", ".join(sorted(self.seen))
            raise DatasetError(f"{path}: --text-fields: no record has the field {', '.join(absent)}; found {found}")

    def report_unknown(self, path: Path, count: int, first: str, deprecated: int = 0) -> None:
        """Report the number of names of labels that were dropped, and the first one with its row."""
        also = f" ({deprecated:,} of them deprecated)" if deprecated else ""
        self.note(f"{path}: {count:,} names of labels are unknown{also}; they are dropped (the first: {first})")

    def check(self, text: str, where: str) -> str:
        """Return a valid text unchanged.

        Raises:
            DatasetError: If the text is invalid.
        """
        if is_blank(text) and not self.may_be_empty:
            raise DatasetError(f"{where}: {EMPTY}")
        if problem := _character_problem(text):
            raise DatasetError(f"{where}: {problem}")
        return text

    def read(self, record: dict[str, Any], default: tuple[str, ...], path: Path, number: int) -> str:
        """Join the fields of a record that form a text. A null or blank field adds nothing.

        Raises:
            DatasetError: If the record has none of the fields, or a field holds no valid text.
        """
        self.seen.update(record)
        fields = self.fields or default
        if not any(name in record for name in fields):
            names = " or ".join(map(repr, fields))
            raise DatasetError(f"{path}:{number}: expected the field {names}, found {sorted(record)}")
        parts = {name: record[name] for name in fields if record.get(name) is not None}
        for name, part in parts.items():
            if not isinstance(part, str):
                raise DatasetError(f"{path}:{number}: {name!r}: expected a string, found {type(part).__name__}")
        text = " ".join(part for part in parts.values() if not is_blank(part))
        return self.check(text, f"{path}:{number}: {fields[0]!r}")


def _character_problem(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the text contains half of a surrogate pair, which is not a character; correct or remove the text"
    return None


def uid_field(record: dict[str, Any], path: Path, number: int, default: str | None = None) -> str:
    """Read the field `uid`: a non-empty string, or an integer, which becomes a string.

    Args:
        default: The uid of a record without the field; None if every record needs the field.

    Raises:
        DatasetError: If the uid is missing or invalid.
    """
    uid = default if record.get("uid") is None else integer_as_uid(record["uid"])
    if uid is None:
        found = "null" if "uid" in record else sorted(record)
        raise DatasetError(f"{path}:{number}: expected the field 'uid', found {found}")
    if not isinstance(uid, str):
        raise DatasetError(f"{path}:{number}: 'uid': expected a string, found {type(uid).__name__}")
    if problem := "the uid is empty; add one" if is_blank(uid) else _character_problem(uid):
        raise DatasetError(f"{path}:{number}: 'uid': {problem}")
    return uid


def label_fields(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a label, besides its uid and its text.

    Raises:
        DatasetError: If a field is wrong, or has a reserved name.
    """
    try:
        return checked_fields(fields)
    except ValueError as error:
        raise DatasetError(f"{where}: {error}") from None


def check_position(position: object, labels: int, where: str) -> int:
    """Check that a value is a label position.

    Raises:
        DatasetError: If the value is not an integer from 0 to `labels` - 1.
    """
    if not isinstance(position, int) or isinstance(position, bool):
        raise DatasetError(f"{where}: expected a label position, found {position!r}")
    if not 0 <= position < labels:
        raise DatasetError(
            f"{where}: label position {position} is out of range; expected 0 to {labels - 1} ({labels:,} labels)"
        )
    return position
