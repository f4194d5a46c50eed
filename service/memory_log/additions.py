"""The lines of the files of `recollect extend`: instances and labels to add, and uids to remove.

All lines are checked before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from recollect.service.errors import InputError
from recollect.service.memory.changes import NewInstance, NewLabel, Uid
from recollect.service.memory.entries import Subject
from recollect.service.options import first_problem
from recollect.service.text_lines import read_lines


class Removal(BaseModel):
    """An instance or a label to remove."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    instance: Uid | None = None
    label: Uid | None = None


Addition = NewInstance | NewLabel
_Parsed = TypeVar("_Parsed")
_Model = TypeVar("_Model", bound=BaseModel)


class Line(NamedTuple, Generic[_Parsed]):
    """The number of a line, and its content."""

    number: int
    content: _Parsed


def read_additions(path: Path) -> dict[Subject, Line[Addition]]:
    """Read a file of instances and labels: one JSON object a line. An object with `labels` is an instance.

    Raises:
        InputError: If the file cannot be read, a line is wrong, or two lines have the same subject.
    """

    def parse(fields: dict[str, Any], where: str) -> tuple[Subject, Addition]:
        if "labels" in fields:
            instance = _parse(NewInstance, fields, where)
            return ("instance", instance.uid), instance
        label = _parse(NewLabel, fields, where)
        return ("label", label.uid), label

    return _read(path, parse)


def read_removals(path: Path) -> dict[Subject, Line[Removal]]:
    """Read a file of uids to remove: one JSON object a line, `{"instance": UID}` or `{"label": UID}`.

    Raises:
        InputError: As `read_additions`.
    """

    def parse(fields: dict[str, Any], where: str) -> tuple[Subject, Removal]:
        removal = _parse(Removal, fields, where)
        subjects = [(kind, uid) for kind, uid in removal if uid is not None]
        if len(subjects) != 1:
            raise InputError(f'{where}: expected {{"instance": UID}} or {{"label": UID}}, found {_shown(fields)}')
        return subjects[0], removal

    return _read(path, parse)


def _read(path: Path, parse: Callable[[dict[str, Any], str], tuple[Subject, _Parsed]]) -> dict[Subject, Line[_Parsed]]:
    found: dict[Subject, Line[_Parsed]] = {}
    for number, line in _lines(path):
        where = f"{path}:{number}"
        subject, content = parse(_parse_object(line, where), where)
        if subject in found:
            raise InputError(
                f"{where}: expected each {subject[0]} once, found {subject[1]!r} also in line {found[subject].number}"
            )
        found[subject] = Line(number, content)
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not empty, with their numbers."""
    try:
        for number, line in read_lines(path):
            if line.strip():
                yield number, line
    except OSError as error:
        raise InputError(f"{path}: expected a file of JSON lines, found: {error.strerror}") from None


def _parse_object(line: str, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected a JSON object, found {line[:40]!r} ({error})") from None
    if not isinstance(fields, dict):
        raise InputError(f"{where}: expected a JSON object, found {_shown(fields)}")
    return fields


def _parse(model: type[_Model], fields: dict[str, Any], where: str) -> _Model:
    try:
        return model(**fields)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "missing":
            found = f"fields {', '.join(fields)}" if fields else "no fields"
            raise InputError(f"{where}: expected a field {name}, found {found}") from None
        if problem["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields)
            raise InputError(f"{where}: expected only the fields {known}, found {name}") from None
        if problem["type"] == "value_error":  # the message names the rule and the next step
            raise InputError(f"{where}: {name}: {first_problem(error)}") from None
        raise InputError(
            f"{where}: {name}: expected {first_problem(error)}, found {_shown(problem['input'])}"
        ) from None


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
