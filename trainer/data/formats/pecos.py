"""The format of PECOS and similar libraries: one text a line, and relevance as scipy's compressed sparse rows.

    X.trn.txt | trn_X.txt | train_raw_texts.txt     X.tst.txt | tst_X.txt | test_raw_texts.txt
    Y.trn.npz                                       Y.tst.npz
    Y.txt | label_map.txt | output-items.txt        label texts, one a line

The format has no uids. The uid of an instance or a label is its row number, from 0.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
from scipy import sparse

from trainer.data.formats.lines import find_file, read_texts, require_file
from trainer.data.split import Entries, LabelSets, SplitName, StringColumn
from trainer.errors import DatasetError

EXPECTED = "Y.trn.npz, X.trn.txt and Y.txt"

_LABELS = ("Y.txt", "label_map.txt", "output-items.txt")
_TEXTS: dict[str, tuple[str, ...]] = {
    "train": ("X.trn.txt", "trn_X.txt", "train_raw_texts.txt"),
    "test": ("X.tst.txt", "tst_X.txt", "test_raw_texts.txt"),
}
_RELEVANCE: dict[str, str] = {"train": "Y.trn.npz", "test": "Y.tst.npz"}


def recognises(folder: Path) -> bool:
    return find_file(folder, tuple(_RELEVANCE.values())) is not None


def read_labels(folder: Path) -> tuple[Path, Entries]:
    path = require_file(folder, _LABELS)
    return path, _read_texts(path)


def read_split(folder: Path, name: SplitName, labels: Entries) -> tuple[Path, Entries, LabelSets]:
    texts_path = require_file(folder, _TEXTS[name])
    entries = _read_texts(texts_path)
    path = require_file(folder, (_RELEVANCE[name],))
    relevance = _read_relevance(path)
    if relevance.shape != (len(entries), len(labels)):
        raise DatasetError(
            f"{path}: expected {len(entries):,} x {len(labels):,} (the lines of {texts_path.name} x labels), "
            f"found {relevance.shape[0]:,} x {relevance.shape[1]:,}"
        )
    return texts_path, entries, LabelSets.of(relevance)


def _read_texts(path: Path) -> Entries:
    column = StringColumn()
    for _, text in read_texts(path):
        column.append(text)
    strings = column.build()
    return Entries(pa.array(map(str, range(len(strings))), type=pa.large_string()), strings)


def _read_relevance(path: Path) -> sparse.csr_matrix:
    if not zipfile.is_zipfile(path):
        raise DatasetError(
            f"{path}: expected a sparse matrix as scipy.sparse.save_npz writes it, found a file that is no zip archive"
        )
    try:
        loaded = sparse.load_npz(path)  # load_npz never unpickles objects
        if loaded.format in ("csr", "csc", "bsr"):
            loaded.check_format(full_check=True)  # csr_matrix does not check the indices
        relevance = sparse.csr_matrix(loaded)
        relevance.sum_duplicates()
        relevance.eliminate_zeros()
    except Exception as error:  # zipfile, numpy and scipy raise many kinds of errors
        raise DatasetError(
            f"{path}: expected a sparse matrix as scipy.sparse.save_npz writes it, found: {error}"
        ) from None
    return relevance
