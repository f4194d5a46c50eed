"""One text a line, and relevance as scipy's compressed sparse rows: PECOS, X-Transformer (EURLex-4K) and DEXML.

    PECOS                         X-Transformer          DEXML
    X.trn.txt                     train_raw_texts.txt    raw/trn_X.txt    texts of the instances
    X.tst.txt                     test_raw_texts.txt     raw/tst_X.txt
    Y.txt | output-items.txt      label_map.txt          raw/Y.txt        texts of the labels
    Y.trn.npz, Y.tst.npz                                                  relevance

The format has no uids. The uid of an instance or a label is its row number, from 0.
"""

from __future__ import annotations

from pathlib import Path

from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.lines import find_file, read_texts, require_file
from recollect.trainer.data.formats.matrices import read_relevance
from recollect.trainer.data.split import Entries, Split, SplitName, numbered

EXPECTED = "Y.trn.npz, X.trn.txt and Y.txt"
TEXT_FIELDS: tuple[str, ...] = ()

_LABELS = ("Y.txt", "label_map.txt", "output-items.txt", "raw/Y.txt")
_TEXTS: dict[str, tuple[str, ...]] = {
    "train": ("X.trn.txt", "trn_X.txt", "train_raw_texts.txt", "raw/trn_X.txt"),
    "test": ("X.tst.txt", "tst_X.txt", "test_raw_texts.txt", "raw/tst_X.txt"),
}
_RELEVANCE: dict[str, str] = {"train": "Y.trn.npz", "test": "Y.tst.npz"}


def recognises(folder: Path) -> bool:
    return find_file(folder, tuple(_RELEVANCE.values())) is not None


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    path = require_file(folder, _LABELS)
    return path, numbered(read_texts(path, rule))


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    texts_path = require_file(folder, _TEXTS[name])
    entries = numbered(read_texts(texts_path, rule))
    path = require_file(folder, (_RELEVANCE[name],))
    return texts_path, read_relevance(path, entries, labels, rule, f"the lines of {texts_path.name} x labels")
