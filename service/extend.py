"""`recollect extend`: adds instances and labels to the live memory of a store, and removes some, without a server.

Both files are checked completely before the first entry is written. Removals are written first, then labels, then
instances, in blocks. A second write of the same entry changes nothing, so an interrupted task can be started again.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from recollect.service.bundle.bundle import Bundle
from recollect.service.command_settings import ExtendSettings
from recollect.service.console import progress_bar
from recollect.service.errors import InputError, SettingsError
from recollect.service.memory.changes import NewInstance, NewLabel, Uid
from recollect.service.memory.entries import (
    Entry,
    LoggedEntry,
    PutInstance,
    PutLabel,
    RemoveInstance,
    RemoveLabel,
    Subject,
    is_put,
    subject_of,
)
from recollect.service.memory_log.log import MemoryLog
from recollect.service.memory_log.writer import MemoryWriter
from recollect.service.options import first_problem
from recollect.service.predictor.encoder import QueryEncoder
from recollect.service.store.locations import open_store
from recollect.service.text_lines import read_lines
from recollect.service.threads import threads_or_cores

# Entries that are encoded and written together.
_BLOCK = 256

_Item = TypeVar("_Item")
_Parsed = TypeVar("_Parsed")
_Model = TypeVar("_Model", bound=BaseModel)


class _Removal(BaseModel):
    """An instance or a label to remove."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    instance: Uid | None = None
    label: Uid | None = None


_Addition = NewInstance | NewLabel


class _Line(NamedTuple, Generic[_Parsed]):
    """The number of a line, and its content."""

    number: int
    content: _Parsed


class Extended(NamedTuple):
    """The result of `extend`.

    Attributes:
        instances: Number of instances that were inserted or replaced.
        labels: Number of labels that were inserted or replaced.
        removed: Number of instances and labels that were removed.
        unknown: Uids to remove that the memory did not contain.
        sequence: Sequence number of the last entry.
    """

    instances: int
    labels: int
    removed: int
    unknown: list[str]
    sequence: int


class KnownUids:
    """The labels and instances of a memory: those of a bundle, with the changes of the entries after it."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._is_present: dict[Subject, bool] = {}

    def has_label(self, uid: str) -> bool:
        present = self._is_present.get(("label", uid))
        return self._bundle.labels.position(uid) is not None if present is None else present

    def missing(self, subjects: Sequence[Subject]) -> list[Subject]:
        """The subjects that the memory does not contain."""
        unchanged = {uid for kind, uid in subjects if kind == "instance" and (kind, uid) not in self._is_present}
        uids = self._bundle.instances.uids
        mapped = {uid for row in range(len(uids)) if (uid := uids[row]) in unchanged} if unchanged else set()

        def is_present(kind: str, uid: str) -> bool:
            if kind == "label":
                return self.has_label(uid)
            return self._is_present.get((kind, uid), uid in mapped)

        return [(kind, uid) for kind, uid in subjects if not is_present(kind, uid)]

    def apply(self, entries: Sequence[LoggedEntry]) -> None:
        for logged in entries:
            self._is_present[subject_of(logged.entry)] = is_put(logged.entry)


def extend(settings: ExtendSettings) -> Extended:
    """Add the lines of a file to the live memory of a store, and remove those of another file.

    Args:
        settings: The store and the files.

    Raises:
        SettingsError: If neither file is given.
        InputError: If a file cannot be read, a line is wrong, or a line names a label that the memory lacks.
        MemoryLogError: If the log cannot be read or written.
        StoreError, BundleError, KeyFileError: If the current version or a key cannot be opened.
    """
    if settings.add is None and settings.remove is None:
        raise SettingsError("expected --add or --remove, found neither; see `recollect extend --help`")
    additions = _read_additions(settings.add) if settings.add else {}
    removals = _read_removals(settings.remove) if settings.remove else {}
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    bundle = store.open(store.require_current())
    log = MemoryLog.of(store, bundle.manifest)
    writer = MemoryWriter(log, KnownUids(bundle), _apply)
    known = writer.catch_up()
    log.require_writable()
    _check_labels(additions, removals, known, settings.add)
    unknown = known.missing(list(removals))
    encoder = QueryEncoder.of(bundle, threads=1, parallel=threads_or_cores(0))
    with progress_bar(len(removals) + len(additions), "entry", "extend") as bar:
        done = 0
        for entries in itertools.chain(_removals(removals), _additions(additions, encoder)):
            writer.write(functools.partial(_decide, entries, done))
            done += len(entries)
            bar.update(len(entries))
    instances = sum(kind == "instance" for kind, _ in additions)
    return Extended(
        instances,
        len(additions) - instances,
        len(removals) - len(unknown),
        [uid for _, uid in unknown],
        log.sequence,
    )


def _apply(known: KnownUids, entries: Sequence[LoggedEntry], commit: str) -> KnownUids:
    known.apply(entries)
    return known


def _check_labels(
    additions: dict[Subject, _Line[_Addition]],
    removals: dict[Subject, _Line[_Removal]],
    known: KnownUids,
    path: Path | None,
) -> None:
    """Check that all labels of the instances are in the memory, after the removals, or in the file."""
    for number, content in additions.values():
        if isinstance(content, NewInstance):
            for uid in content.labels:
                subject = ("label", uid)
                if subject not in additions and (subject in removals or not known.has_label(uid)):
                    reason = "which --remove removes" if subject in removals else "which is not there"
                    raise InputError(
                        f"{path}:{number}: labels: expected labels of the memory or of this file, found {uid!r}, "
                        f"{reason}; add a line with its uid and its text"
                    )


def _removals(removals: dict[Subject, _Line[_Removal]]) -> Iterator[list[Entry]]:
    for block in _blocks(list(removals)):
        yield [RemoveInstance(uid) if kind == "instance" else RemoveLabel(uid) for kind, uid in block]


def _additions(additions: dict[Subject, _Line[_Addition]], encoder: QueryEncoder) -> Iterator[list[Entry]]:
    """The entries of the additions: labels first, so that each label is known before the instances that name it."""
    contents = [line.content for line in additions.values()]
    for kind in (NewLabel, NewInstance):
        for block in _blocks([each for each in contents if isinstance(each, kind)]):
            texts = [each.text for each in block]
            vectors = encoder.encode_texts([], texts) if kind is NewLabel else encoder.encode_texts(texts)
            yield [
                PutInstance(each.uid, each.text, [*dict.fromkeys(each.labels)], vector, each.weight)
                if isinstance(each, NewInstance)
                else PutLabel(each.uid, each.text, vector)
                for each, vector in zip(block, vectors, strict=True)
            ]


def _decide(entries: list[Entry], done: int, known: KnownUids) -> list[Entry]:
    """Check the labels again, because another process can have removed one meanwhile."""
    for entry in entries:
        if isinstance(entry, PutInstance):
            for uid in entry.labels:
                if not known.has_label(uid):
                    raise InputError(
                        f"{entry.uid}: labels: expected labels of the memory, found {uid!r}, which another process has "
                        f"removed meanwhile; {done:,} entries are written: correct the file and run the command again"
                    )
    return entries


def _blocks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), _BLOCK):
        yield items[start : start + _BLOCK]


# ---- The lines of the files ----


def _read_additions(path: Path) -> dict[Subject, _Line[_Addition]]:
    """Read a file of instances and labels: one JSON object a line. An object with `labels` is an instance.

    Raises:
        InputError: If the file cannot be read, a line is wrong, or two lines have the same subject.
    """

    def parse(fields: dict[str, Any], where: str) -> tuple[Subject, _Addition]:
        if "labels" in fields:
            instance = _parse(NewInstance, fields, where)
            return ("instance", instance.uid), instance
        label = _parse(NewLabel, fields, where)
        return ("label", label.uid), label

    return _read(path, parse)


def _read_removals(path: Path) -> dict[Subject, _Line[_Removal]]:
    """Read a file of uids to remove: one JSON object a line, `{"instance": UID}` or `{"label": UID}`.

    Raises:
        InputError: As `_read_additions`.
    """

    def parse(fields: dict[str, Any], where: str) -> tuple[Subject, _Removal]:
        removal = _parse(_Removal, fields, where)
        subjects = [(kind, uid) for kind, uid in removal if uid is not None]
        if len(subjects) != 1:
            raise InputError(f'{where}: expected {{"instance": UID}} or {{"label": UID}}, found {_shown(fields)}')
        return subjects[0], removal

    return _read(path, parse)


def _read(path: Path, parse: Callable[[dict[str, Any], str], tuple[Subject, _Parsed]]) -> dict[Subject, _Line[_Parsed]]:
    found: dict[Subject, _Line[_Parsed]] = {}
    for number, line in _lines(path):
        where = f"{path}:{number}"
        subject, content = parse(_parse_object(line, where), where)
        if subject in found:
            raise InputError(
                f"{where}: expected each {subject[0]} once, found {subject[1]!r} also in line {found[subject].number}"
            )
        found[subject] = _Line(number, content)
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
