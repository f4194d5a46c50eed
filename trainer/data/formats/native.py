"""Recollect's own format: JSON lines, plain or gzip.

    train.jsonl[.gz]   test.jsonl[.gz]   {"uid", "text", "labels": [position or label uid, ...], "exclude": [...]}
    labels.jsonl[.gz]                    {"uid", "text"}, one line for each label, in label order

The uid of an instance is optional. The default is the row number, from 0. The list `exclude` is optional too. It names
labels, in the same way as `labels`, that are removed from the predictions for this row (`filters`).
"""

from __future__ import annotations

from pathlib import Path

from recollect.trainer.data.formats.fields import TextRule, check_position, uid_field
from recollect.trainer.data.formats.lines import find_file, read_records, require_file
from recollect.trainer.data.split import Entries, Split, SplitBuilder, SplitName, StringColumn
from recollect.trainer.errors import DatasetError

EXPECTED = "labels.jsonl[.gz] and train.jsonl[.gz]"
TEXT_FIELDS: tuple[str, ...] = ("text",)


def recognises(folder: Path) -> bool:
    return any(find_file(folder, _file_names(stem)) for stem in ("labels", "train", "test"))


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    path = require_file(folder, _file_names("labels"))
    uids, texts = StringColumn(), StringColumn()
    for number, record in read_records(path):
        uids.append(uid_field(record, path, number))
        texts.append(rule.read(record, TEXT_FIELDS, path, number))
    return path, Entries(uids.build(), texts.build())


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    path = require_file(folder, _file_names(name))
    resolve = _LabelResolver(labels, path)
    split = SplitBuilder()
    for number, record in read_records(path):
        uid = uid_field(record, path, number, default=str(len(split)))
        own = resolve(record.get("labels"), "labels", number)
        excluded = resolve(record.get("exclude", []), "exclude", number)
        split.append(uid, rule.read(record, TEXT_FIELDS, path, number), own, excluded)
    return path, split.build()


def _file_names(stem: str) -> tuple[str, ...]:
    return (f"{stem}.jsonl", f"{stem}.jsonl.gz")


class _LabelResolver:
    """Converts a label reference in a file to the label's position. A reference is a position or a uid."""

    def __init__(self, labels: Entries, path: Path) -> None:
        self._labels, self._path = labels, path
        self._positions: dict[str, int] | None = None

    def __call__(self, references: object, field: str, number: int) -> list[int]:
        """Convert the list of references in a field."""
        if not isinstance(references, list):
            raise DatasetError(f"{self._path}:{number}: expected {field!r} to be a list, found {references!r}")
        return [self._position(reference, number) for reference in references]

    def _position(self, label: object, number: int) -> int:
        if not isinstance(label, str):
            return check_position(label, len(self._labels), self._path, number)
        if self._positions is None:  # built at the first uid, because files with positions do not need the mapping
            self._positions = {uid: row for row, uid in enumerate(self._labels.uids.to_pylist())}
        if label not in self._positions:
            raise DatasetError(
                f"{self._path}:{number}: label uid {label!r} is unknown; expected one of the "
                f"{len(self._labels):,} uids of the labels file: add it there or correct it here"
            )
        return self._positions[label]
