"""`recollect extend`: adds instances and labels to the live memory of a store, and removes some, without a server.

A file to add has entries as JSON lines, or it is a table with the columns of that from which the version was trained.
Both files are checked completely before the first entry is written. Removals are written first, then labels, then
instances, in blocks. A second write of the same entry changes nothing, so an interrupted task can be started again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import TypeAdapter

from recollect.core.bundle.label_fields import LabelFields
from recollect.core.encoder import TextEncoder
from recollect.core.errors import BundleError, InputError, SettingsError
from recollect.core.settings import ConnectionSettings, TableSettings, fill_in
from recollect.core.system.console import print_status, progress_bar
from recollect.core.system.threads import threads_or_cores
from recollect.core.table_files import (
    TABLE,
    LabelledText,
    Table,
    TextColumns,
    are_label_columns,
    kind_of,
    open_table,
    read_label_rows,
)
from recollect.core.tables.entries import Entry, Kind, Remove, Subject
from recollect.core.tables.snapshot import Snapshot
from recollect.core.text_lines import read_objects
from recollect.edits import changes
from recollect.edits.changes import NewInstance, NewLabel, Uid, checked
from recollect.edits.log import MemoryLog
from recollect.edits.writer import follow
from recollect.store.store import Store

# Entries that are encoded and written together.
_BLOCK = 256

_Item = TypeVar("_Item")
_ROWS: dict[str, TypeAdapter[NewInstance | NewLabel]] = {
    "instance": TypeAdapter(NewInstance),
    "label": TypeAdapter(NewLabel),
}
_UID: TypeAdapter[str] = TypeAdapter(Uid)


class _Addition(NamedTuple):
    """An instance or a label to add, and the file and the line that name it."""

    where: str
    row: NewInstance | NewLabel


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


def extend(
    store: Store,
    add: Path | None,
    remove: Path | None,
    columns: TableSettings | None = None,
    command: Sequence[str] = (),
) -> Extended:
    """Add the lines of a file to the live memory of a store, and remove those of another file.

    Args:
        columns: The columns of a table, where they are not those of the version.
        command: The words of the command, for messages that show one.

    Raises:
        SettingsError: If neither file is given.
        InputError: If a file cannot be read, a line is wrong, or a line names a label that the memory lacks.
        MemoryLogError: If the log cannot be read or written.
        StoreError, BundleError, KeyFileError: If the current version or a key cannot be opened.
    """
    if add is None and remove is None:
        raise SettingsError("expected --add or --remove, found neither; see `recollect extend --help`")
    current = store.require_current()
    bundle = store.open(current)
    dataset = bundle.manifest.dataset
    of_table = dataset.get("format") == TABLE  # whether the version was trained from a table
    names_are_labels = False  # whether a label that the memory lacks is a new one, whose text is its name
    additions: dict[Subject, _Addition] = {}
    if add:
        source, given = f"version {current}", columns or TableSettings.model_construct()
        settings = given
        if of_table:
            remembered = fill_in(given, TableSettings.model_fields, dataset, source, print_status, BundleError)
            settings = given.model_copy(update=remembered)
        known = {*LabelFields.model_fields, *(fields.names() if (fields := bundle.labels.fields) is not None else ())}
        table = _open_as_table(add, given, settings, known, command)
        additions = _read_additions(add, settings.label_column, known) if table is None else _read_table(*table)
        names_are_labels = table is not None and of_table and "labels" not in dataset
    removals = _read_removals(remove) if remove else []
    log = MemoryLog.of(store, bundle.manifest)
    live = follow(log, bundle)
    memory = live.catch_up()
    log.require_writable()
    gone = {*removals}

    def is_label(uid: str) -> bool:
        subject = ("label", uid)
        return subject in additions or (subject not in gone and memory.labels.position(uid) is not None)

    if names_are_labels:
        additions |= {
            ("label", uid): _Addition(where, checked(_ROWS["label"], {"uid": uid, "text": uid}, where, InputError))
            for where, row in [*additions.values()]
            for uid in (row.labels if isinstance(row, NewInstance) else ())
            if not is_label(uid)
        }
    _check_labels(additions.values(), is_label)
    find = {"instance": memory.instance, "label": memory.labels.position}
    unknown = [uid for kind, uid in removals if find[kind](uid) is None]
    encoder = TextEncoder.of(
        bundle, threads=1, parallel=threads_or_cores(0), connections=ConnectionSettings.of_environment().patient()
    )
    with progress_bar(len(removals) + len(additions), "entry", "extend") as bar:
        for subjects in _blocks(removals):
            live.write(_removed(subjects))
            bar.update(len(subjects))
        for kind in ("label", "instance"):  # so that each label is known before the instances that name it
            for block in _blocks([each for subject, each in additions.items() if subject[0] == kind]):
                live.write(_added(block, encoder))
                bar.update(len(block))
    instances = sum(kind == "instance" for kind, _ in additions)
    return Extended(instances, len(additions) - instances, len(removals) - len(unknown), unknown, log.sequence)


def _removed(subjects: Sequence[Subject]) -> Callable[[Snapshot], list[Entry]]:
    return lambda _: [Remove(*subject) for subject in subjects]


def _added(block: Sequence[_Addition], encoder: TextEncoder) -> Callable[[Snapshot], list[Entry]]:
    """A function that makes the entries of some additions, and checks the labels again."""
    instances = [each.row for each in block if isinstance(each.row, NewInstance)]
    labels = [each.row for each in block if isinstance(each.row, NewLabel)]
    vectors = encoder.encode_texts([each.text for each in instances], [each.text for each in labels])

    def decide(memory: Snapshot) -> list[Entry]:
        _check_labels(block, lambda uid: memory.labels.position(uid) is not None)
        return changes.put(memory, lambda *_: vectors, instances, labels)

    return decide


def _check_labels(additions: Iterable[_Addition], is_label: Callable[[str], bool]) -> None:
    """Check that the memory will have all labels of the instances."""
    for where, row in additions:
        for uid in row.labels if isinstance(row, NewInstance) else ():
            if not is_label(uid):
                raise InputError(
                    f"{where}: labels: expected labels of the memory or of this file, found {uid!r}, which is not "
                    "there, or which --remove or another process has removed; add a line with its uid and its text"
                )


def _blocks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), _BLOCK):
        yield items[start : start + _BLOCK]


def _read_additions(path: Path, label_column: str | None, known: Set[str]) -> dict[Subject, _Addition]:
    """Read a file of instances and labels: one JSON object a line. An object with `labels` is an instance.

    Args:
        label_column: The column of labels of the table from which the version was trained; None without a table.
        known: The fields that labels have. With a table, another field could be a misspelt column of labels.

    Raises:
        InputError: If the file cannot be read, a line is wrong, or two lines have the same subject.
    """
    found: dict[Subject, _Addition] = {}
    for number, fields in read_objects(path, unique=True):
        where = f"{path}:{number}"
        kind: Kind = "instance" if "labels" in fields else "label"
        if kind == "label" and label_column is not None and not are_label_columns(fields, known):
            raise InputError(
                f"{where}: expected a label with the fields {', '.join(sorted(known))}, or an instance with labels, "
                f"found the fields {', '.join(fields)}; rename them, or put texts with {label_column} into another file"
            )
        row = checked(_ROWS[kind], fields, where, InputError)
        if (other := found.setdefault((kind, row.uid), _Addition(where, row))).where != where:
            raise _twice(where, (kind, row.uid), other.where)
    return found


def _open_as_table(
    path: Path, given: TableSettings, settings: TableSettings, known: Set[str], command: Sequence[str]
) -> tuple[Table, TextColumns | None, str | None] | None:
    """Open a file to add as a table; None if it has entries as JSON lines.

    JSON lines are rows of a table if flags name its columns, or if the version was trained from a table and the first
    object has its column of labels, or is no entry. A table without the column of labels that is known has labels only
    if all its columns are fields of labels.

    Args:
        given: The flags of the user.
        settings: These flags, and those of the version.
        known: The fields that labels have.

    Returns:
        The table, the columns of its texts (None for a table of labels), and the separator.
    """
    label_column, flags = settings.label_column, given.model_fields_set & TableSettings.model_fields.keys()
    if kind_of(path) in (None, "jsonl") and not flags:
        if label_column is None:
            return None
        first = next(iter(read_objects(path)), (1, {"uid": "", "text": ""}))[1]
        is_instance = label_column == "labels" and isinstance(first.get("labels"), list)
        if first.keys() >= {"uid", "text"} and (is_instance or label_column not in first):
            return None
    table = open_table(path, settings.named_columns)
    if label_column is None:
        has_labels = {*table.columns} >= {"uid", "text"}
    else:
        has_labels = label_column not in table.columns and are_label_columns(table.columns, known)
    if has_labels and "label_column" not in flags:
        return table, None, settings.label_separator
    return table, TextColumns.of(settings, table, command, InputError), settings.label_separator


def _read_table(table: Table, columns: TextColumns | None, separator: str | None) -> dict[Subject, _Addition]:
    """Read a table of texts with labels, or a table of labels.

    Without a column of uids, the uid of a text is a hash of it. Rows of one uid are joined. Rows without a label are
    left out, and reported.

    Raises:
        InputError: If a row is wrong, or two rows of one uid have different texts.
    """
    found: dict[Subject, _Addition] = {}
    if columns is None:
        for label in read_label_rows(table, separator, InputError):
            fields = {"uid": label.uid, "text": label.text, **label.fields}
            row = checked(_ROWS["label"], fields, label.where, InputError)
            if (other := found.setdefault(("label", row.uid), _Addition(label.where, row))).where != label.where:
                raise _twice(label.where, ("label", row.uid), other.where)
        return found
    joined: dict[str, LabelledText] = {}
    without: list[str] = []
    for read in columns.read(table, InputError):
        if not read.labels:
            without.append(read.where)
            continue
        uid = read.uid or f"text-{hashlib.blake2b(read.text.encode(errors='replace'), digest_size=8).hexdigest()}"
        first = joined.setdefault(uid, read)
        if first.text != read.text:
            raise InputError(
                f"{read.where}: {columns.uid}: expected the text of {uid!r} that is in {first.where}, found another "
                "one; correct it"
            )
        if first is not read:
            joined[uid] = first._replace(labels=[*dict.fromkeys([*first.labels, *read.labels])])
    for uid, read in joined.items():
        fields = {"uid": uid, "text": read.text, "labels": read.labels}
        found["instance", uid] = _Addition(read.where, checked(_ROWS["instance"], fields, read.where, InputError))
    if without:
        print_status(f"{table.name}: {len(without):,} rows have no label; they are left out (the first: {without[0]})")
    return found


def _read_removals(path: Path) -> list[Subject]:
    """Read a file of uids to remove: one JSON object a line, `{"instance": UID}` or `{"label": UID}`.

    Raises:
        InputError: As `_read_additions`.
    """
    found: dict[Subject, str] = {}
    for number, fields in read_objects(path):
        where = f"{path}:{number}"
        if len(fields) != 1 or not {*fields} < {"instance", "label"}:
            raise InputError(f'{where}: expected {{"instance": UID}} or {{"label": UID}}, found {fields!r:.60}')
        kind: Kind = "instance" if "instance" in fields else "label"
        subject = kind, checked(_UID, fields[kind], f"{where}: {kind}", InputError)
        if (other := found.setdefault(subject, where)) != where:
            raise _twice(where, subject, other)
    return [*found]


def _twice(where: str, subject: Subject, other: str) -> InputError:
    kind, uid = subject
    return InputError(f"{where}: expected each {kind} once, found {uid!r} also in {other}; remove one of the lines")
