"""Recollect's own format: JSON lines, plain or gzip.

    train.jsonl[.gz]   test.jsonl[.gz]   {"uid", "text", "labels": [label uid, ...], "exclude": [...]}
    labels.jsonl[.gz]                    {"uid", "text", ...}, one line for each label with its fields, in label order

Positions from 0 may replace the uids in `labels` (`references` has the rule). The uid of an instance is optional. The
default is the row number, from 0. The list `exclude` is optional too. It names labels, in the same way as
`labels`, that are removed from the predictions for this row (`filters`).
"""

from __future__ import annotations

from pathlib import Path

from recollect.core.bundle.label_fields import LabelFields
from recollect.trainer.data.formats.fields import TextRule, label_fields, uid_field
from recollect.trainer.data.formats.lines import find_file, read_records, require_file
from recollect.trainer.data.formats.references import LabelReferences
from recollect.trainer.data.split import Entries, LabelColumns, Split, SplitBuilder, SplitName

EXPECTED = "labels.jsonl[.gz] and train.jsonl[.gz]"
TEXT_FIELDS: tuple[str, ...] = ("text",)


def recognises(folder: Path) -> bool:
    return any(find_file(folder, _file_names(stem)) for stem in ("labels", "train", "test"))


def has_split(folder: Path, name: SplitName) -> bool:
    return find_file(folder, _file_names(name)) is not None


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    path = require_file(folder, _file_names("labels"))
    labels = LabelColumns()
    # A further field that forms the text is not stored a second time: it may be long.
    in_text = {"uid", "text", *rule.fields}.difference(LabelFields.model_fields)
    for number, record in read_records(path, unique=True):
        uid, text = uid_field(record, path, number), rule.read(record, TEXT_FIELDS, path, number)
        others = {name: record[name] for name in record if name not in in_text}
        labels.append(uid, text, label_fields(others, f"{path}:{number}"))
    return path, labels.build()


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    path = require_file(folder, _file_names(name))
    references = LabelReferences(labels, path, rule)
    split = SplitBuilder()
    for number, record in read_records(path):
        uid = uid_field(record, path, number, default=str(len(split)))
        own = references.find(record.get("labels"), "labels", f"{path}:{number}")
        excluded = references.find(record.get("exclude", []), "exclude", f"{path}:{number}")
        split.append(uid, rule.read(record, TEXT_FIELDS, path, number), own, excluded)
    references.report()
    return path, split.build()


def _file_names(stem: str) -> tuple[str, ...]:
    return (f"{stem}.jsonl", f"{stem}.jsonl.gz")
