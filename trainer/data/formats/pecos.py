"""The layout that PECOS and its kin use: texts one a line, relevance as scipy's compressed sparse rows.

    X.trn.txt | trn_X.txt | train_raw_texts.txt     X.tst.txt | tst_X.txt | test_raw_texts.txt
    Y.trn.npz                                       Y.tst.npz
    Y.txt | label_map.txt | output-items.txt        label texts, one a line

Nothing in it has a uid: the row number, from 0, stands in, for instances and labels alike.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy import sparse

from trainer.data.dataset import Entries, LabelSets, SplitName, StringColumn
from trainer.data.formats.lines import first_existing, require, texts
from trainer.errors import DatasetError

EXPECTED = "Y.trn.npz, X.trn.txt and Y.txt"

_LABELS = ("Y.txt", "label_map.txt", "output-items.txt")
_TEXTS: dict[str, tuple[str, ...]] = {
    "train": ("X.trn.txt", "trn_X.txt", "train_raw_texts.txt"),
    "test": ("X.tst.txt", "tst_X.txt", "test_raw_texts.txt"),
}
_RELEVANCE: dict[str, str] = {"train": "Y.trn.npz", "test": "Y.tst.npz"}


def recognises(folder: Path) -> bool:
    return first_existing(folder, tuple(_RELEVANCE.values())) is not None


def read_labels(folder: Path) -> tuple[Path, Entries]:
    path = require(folder, _LABELS)
    return path, _read_texts(path)


def read_split(folder: Path, name: SplitName, labels: Entries) -> tuple[Path, Entries, LabelSets]:
    texts_path = require(folder, _TEXTS[name])
    entries = _read_texts(texts_path)
    path = require(folder, (_RELEVANCE[name],))
    relevance = _read_relevance(path)
    if relevance.shape != (len(entries), len(labels)):
        raise DatasetError(
            f"{path}: expected {len(entries):,} x {len(labels):,} (the lines of {texts_path.name} x labels), "
            f"found {relevance.shape[0]:,} x {relevance.shape[1]:,}"
        )
    return (
        texts_path,
        entries,
        LabelSets(relevance.indptr.astype(np.int64), relevance.indices.astype(np.int32)),
    )


def _read_texts(path: Path) -> Entries:
    column = StringColumn()
    for _, text in texts(path):
        column.append(text)
    strings = column.build()
    return Entries(pa.array(map(str, range(len(strings))), type=pa.large_string()), strings)


def _read_relevance(path: Path) -> sparse.csr_matrix:
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path}: expected a sparse matrix as scipy.sparse.save_npz writes it, found no zip archive")
    try:
        loaded = sparse.load_npz(path)  # never unpickles
        if loaded.format in ("csr", "csc", "bsr"):
            loaded.check_format(full_check=True)  # the loops below trust the indices
        relevance = sparse.csr_matrix(loaded)
        relevance.sum_duplicates()
        relevance.eliminate_zeros()
    except Exception as error:  # zipfile, numpy and scipy raise many kinds
        raise DatasetError(
            f"{path}: expected a sparse matrix as scipy.sparse.save_npz writes it, found: {error}"
        ) from None
    return relevance
