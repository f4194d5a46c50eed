"""The format of xclib and the programs that use it (DeepXML, SiameseXML, NGAME, OAK).

    trn_X_Y.txt | trn_X_Y.npz      tst_X_Y.txt | tst_X_Y.npz      relevance
    raw_data/train.raw.txt         raw_data/test.raw.txt          texts of the instances, one a line
    raw_data/label.raw.txt         (or trn_X.txt, tst_X.txt, Y.txt; also with .gz)

A line of a raw file is a text, or `uid->text` in every line of the file. Without uids, the row number is the uid.

If a file of texts is absent, the bag of words replaces it. A text then consists of the words of its row, with the
largest weight first:

    trn_X_Xf.txt  tst_X_Xf.txt  lbl_X_Xf.txt | Yf.txt      weights of words
    Xf.txt                                                  the words, one a line
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from recollect.core.texts import is_blank
from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.lines import find_file, read_lines, read_texts, require_file
from recollect.trainer.data.formats.matrices import check_shape, read_matrix, read_relevance
from recollect.trainer.data.split import Entries, Split, SplitName, numbered
from recollect.trainer.errors import DatasetError

EXPECTED = "trn_X_Y.txt, and raw_data/train.raw.txt or trn_X_Xf.txt and Xf.txt"
TEXT_FIELDS: tuple[str, ...] = ()

_TEXTS: dict[str, tuple[str, ...]] = {
    "train": ("raw_data/train.raw.txt", "trn_X.txt"),
    "test": ("raw_data/test.raw.txt", "tst_X.txt"),
    "labels": ("raw_data/label.raw.txt", "Y.txt"),
}
_WORD_WEIGHTS: dict[str, tuple[str, ...]] = {
    "train": ("trn_X_Xf.txt",),
    "test": ("tst_X_Xf.txt",),
    "labels": ("lbl_X_Xf.txt", "Yf.txt"),
}
_RELEVANCE: dict[str, tuple[str, ...]] = {
    "train": ("trn_X_Y.txt", "trn_X_Y.npz"),
    "test": ("tst_X_Y.txt", "tst_X_Y.npz"),
}
_WORDS = "Xf.txt"

_WITH_UID = re.compile(r"(\S+?)->(.*)", re.DOTALL)


def recognises(folder: Path) -> bool:
    return find_file(folder, _RELEVANCE["train"] + _RELEVANCE["test"]) is not None


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    return _read_entries(folder, "labels", rule)


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    texts_path, entries = _read_entries(folder, name, rule)
    path = require_file(folder, _RELEVANCE[name])
    return texts_path, read_relevance(path, entries, labels, rule, f"the texts of {texts_path.name} x labels")


def _read_entries(folder: Path, part: str, rule: TextRule) -> tuple[Path, Entries]:
    texts = tuple(name + suffix for name in _TEXTS[part] for suffix in ("", ".gz"))
    path = find_file(folder, texts)
    if path is not None:
        return path, _read_raw(path, rule)
    weights = find_file(folder, _WORD_WEIGHTS[part])
    if weights is not None and (folder / _WORDS).is_file():
        return weights, numbered(_bags_of_words(folder, weights, rule))
    missing = f"{weights.name} without {_WORDS}, the words of its columns" if weights else "neither"
    raise DatasetError(
        f"{folder}: expected {_TEXTS[part][0]}, or {_WORD_WEIGHTS[part][0]} and {_WORDS}, found {missing}; "
        "add the raw texts of the dataset"
    )


def _read_raw(path: Path, rule: TextRule) -> Entries:
    lines = [line for _, line in read_lines(path)]
    filled = lines
    while filled and is_blank(filled[-1]):  # blank lines at the end are no texts if the others have a uid
        filled = filled[:-1]
    parts = [_WITH_UID.fullmatch(line) for line in filled]
    with_uid = sum(part is not None for part in parts)
    if with_uid < len(parts) <= 2 * with_uid:
        number = parts.index(None) + 1
        raise DatasetError(
            f"{path}:{number}: expected uid->text, as in {with_uid:,} of {len(parts):,} lines, found "
            f"{lines[number - 1][:40]!r}; add the uid, or remove all uids"
        )
    if with_uid and with_uid < len(parts):
        rule.note(f"{path}: {with_uid:,} of {len(parts):,} lines look like uid->text; they are read as texts")
    if with_uid == 0 or with_uid < len(parts):
        return numbered(read_texts(path, rule))
    texts = (rule.check(part[2], f"{path}:{number}") for number, part in enumerate(parts, start=1) if part)
    uids = (part[1] for part in parts if part)
    return Entries(pa.array(uids, type=pa.large_string()), pa.array(texts, type=pa.large_string()))


def _bags_of_words(folder: Path, path: Path, rule: TextRule) -> Iterator[str]:
    """Yield the words of each row, with the largest weight first, and words of equal weight in their order."""
    weights, lines = read_matrix(path), numbered(line for _, line in read_lines(folder / _WORDS))
    words = lines.without_blank_end(weights.shape[1]).texts.to_numpy(zero_copy_only=False)
    weights.eliminate_zeros()
    check_shape(weights, path, (weights.shape[0], len(words)), f"rows x the lines of {_WORDS}")
    for row, (start, stop) in enumerate(zip(weights.indptr[:-1], weights.indptr[1:], strict=True), start=2):
        order = np.argsort(-weights.data[start:stop], kind="stable")
        yield rule.check(" ".join(words[weights.indices[start:stop][order]]), f"{path}:{row}")
