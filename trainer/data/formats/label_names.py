"""One text a line, and the names of its labels in another file: AttentionXML, LightXML (EUR-Lex, Wiki10-31K, ...).

    train_raw_texts.txt | train_texts.txt     test_raw_texts.txt | test_texts.txt
    train_labels.txt                          test_labels.txt          names, separated by spaces

The labels are the names of both splits, sorted. The name is the uid. The text of a label is its name, with spaces
instead of underscores. The uid of an instance is its row number, from 0.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.lines import find_file, read_lines, read_texts, require_file
from recollect.trainer.data.split import Entries, Split, SplitBuilder, SplitName, numbered
from recollect.trainer.errors import DatasetError

EXPECTED = "train_labels.txt and train_raw_texts.txt"
TEXT_FIELDS: tuple[str, ...] = ()

_TEXTS: dict[str, tuple[str, ...]] = {
    "train": ("train_raw_texts.txt", "train_texts.txt"),
    "test": ("test_raw_texts.txt", "test_texts.txt"),
}
_LABELS: dict[str, str] = {"train": "train_labels.txt", "test": "test_labels.txt"}


def recognises(folder: Path) -> bool:
    return find_file(folder, tuple(_LABELS.values())) is not None


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    path = require_file(folder, tuple(_LABELS.values()))
    files = [folder / name for name in _LABELS.values() if (folder / name).is_file()]
    names = sorted({name for file in files for _, line in read_lines(file) for name in line.split()})
    texts = (rule.check(name.replace("_", " "), f"{path}: label {name!r}") for name in names)
    return path, Entries(pa.array(names, type=pa.large_string()), pa.array(texts, type=pa.large_string()))


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    texts_path, path = require_file(folder, _TEXTS[name]), require_file(folder, (_LABELS[name],))
    positions = {uid: position for position, uid in enumerate(labels.uids.to_pylist())}
    rows = [line.split() for _, line in read_lines(path)]
    texts = numbered(read_texts(texts_path, rule)).without_blank_end(len(rows))
    while len(rows) > len(texts) and not rows[-1]:  # blank lines at the end
        rows.pop()
    if len(rows) != len(texts):
        raise DatasetError(f"{path}: expected {len(texts):,} lines, as in {texts_path.name}, found {len(rows):,}")
    split = SplitBuilder()
    for uid, text, names in zip(texts.uids.to_pylist(), texts.texts.to_pylist(), rows, strict=True):
        split.append(uid, text, [positions[each] for each in names])
    return texts_path, split.build()
