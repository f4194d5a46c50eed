"""The raw-data format of the Extreme Classification Repository (http://manikvarma.org/downloads/XC).

    trn.json.gz  tst.json.gz   {"uid", "title", "content", "target_ind": [position, ...], "target_rel"}
    lbl.json.gz                {"uid", "title", "content"}

A text is the title, followed by the content if there is one, unless `--text-fields` names other fields.
"""

from __future__ import annotations

from pathlib import Path

from recollect.trainer.data.formats.fields import TextRule, check_position, uid_field
from recollect.trainer.data.formats.lines import find_file, read_records, require_file
from recollect.trainer.data.split import Entries, Split, SplitBuilder, SplitName, StringColumn
from recollect.trainer.errors import DatasetError

EXPECTED = "lbl.json[.gz] and trn.json[.gz]"
TEXT_FIELDS: tuple[str, ...] = ("title", "content")

_STEMS: dict[str, str] = {"train": "trn", "test": "tst", "labels": "lbl"}


def recognises(folder: Path) -> bool:
    return find_file(folder, _file_names("labels")) is not None


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    path = require_file(folder, _file_names("labels"))
    uids, texts = StringColumn(), StringColumn()
    for number, record in read_records(path):
        uids.append(uid_field(record, path, number))
        texts.append(rule.read(record, TEXT_FIELDS, path, number))
    return path, Entries(uids.build(), texts.build())


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    path = require_file(folder, _file_names(name))
    split = SplitBuilder()
    for number, record in read_records(path):
        found = record.get("target_ind")
        if not isinstance(found, list):
            raise DatasetError(f"{path}:{number}: expected 'target_ind' to be a list, found {found!r}")
        positions = [check_position(position, len(labels), f"{path}:{number}") for position in found]
        uid = uid_field(record, path, number, default=str(len(split)))
        split.append(uid, rule.read(record, TEXT_FIELDS, path, number), positions)
    return path, split.build()


def _file_names(name: str) -> tuple[str, ...]:
    return (f"{_STEMS[name]}.json.gz", f"{_STEMS[name]}.json")
