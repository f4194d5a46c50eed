"""The raw-data format of the Extreme Classification Repository (http://manikvarma.org/downloads/XC).

    trn.json.gz  tst.json.gz   {"uid", "title", "content", "target_ind": [position, ...], "target_rel"}
    lbl.json.gz                {"uid", "title", "content"}

`target_rel` is optional. A label with a value of 0 or less is not a true label.

A text is the title, followed by the content if there is one, unless `--text-fields` names other fields.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from recollect.trainer.data.formats.fields import TextRule, check_position, uid_field
from recollect.trainer.data.formats.lines import find_file, read_records, require_file
from recollect.trainer.data.formats.relevance import check_finite, true_labels
from recollect.trainer.data.split import Entries, Split, SplitName, StringColumn
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
    uids, texts = StringColumn(), StringColumn()
    starts, positions, values = array.array("q", [0]), array.array("i"), array.array("d")
    for number, record in read_records(path):
        where, found = f"{path}:{number}", record.get("target_ind")
        if not isinstance(found, list):
            raise DatasetError(f"{where}: expected 'target_ind' to be a list, found {found!r}")
        values.extend(_read_values(record.get("target_rel"), len(found), where))
        positions.extend(check_position(position, len(labels), where) for position in found)
        uids.append(uid_field(record, path, number, default=str(len(starts) - 1)))
        texts.append(rule.read(record, TEXT_FIELDS, path, number))
        starts.append(len(positions))
    entries = Entries(uids.build(), texts.build())
    relevance = sparse.csr_matrix(tuple(map(np.array, (values, positions, starts))), (len(entries), len(labels)))
    return path, Split(entries, true_labels(relevance, path, rule))


def _read_values(found: object, count: int, where: str) -> Sequence[float] | np.ndarray:
    """The relevance values of a record; without any, each is 1."""
    if found is None:
        return [1.0] * count
    if not (isinstance(found, list) and len(found) == count and all(isinstance(each, int | float) for each in found)):
        raise DatasetError(
            f"{where}: expected 'target_rel' to be a list of {count} numbers, one for each of 'target_ind', "
            f"found {found!r:.60}"
        )
    try:
        values = np.array(found, dtype=np.float64)
    except OverflowError:  # an integer of hundreds of digits
        values = np.full(count, np.inf)
    check_finite(values, lambda _: f"{where}: 'target_rel'")
    return values


def _file_names(name: str) -> tuple[str, ...]:
    return (f"{_STEMS[name]}.json.gz", f"{_STEMS[name]}.json")
