"""Filter files: pairs (row, label), both counted from 0. The label is removed from the predictions for the row.

In product-to-product data, a query and a label can be the same product. Predicting this label is trivial.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from jaxtyping import Int

from recollect.core.system.files import find_files
from recollect.trainer.data.formats.lines import find_file, read_lines
from recollect.trainer.data.split import SplitName
from recollect.trainer.errors import DatasetError

FILTERS: dict[SplitName, tuple[str, ...]] = {
    "train": ("filter_labels_train.txt", "filter_labels_trn.txt", "train_filter_labels.txt", "trn_filter_labels.txt"),
    "test": ("filter_labels_test.txt", "filter_labels_tst.txt", "test_filter_labels.txt", "tst_filter_labels.txt"),
}


def find_filter(folder: Path, split: SplitName) -> Path | None:
    """The filter file of a split, also with `.gz` at the end; None if there is none."""
    return find_file(folder, tuple(f"{name}{gz}" for name in FILTERS[split] for gz in ("", ".gz")))


def unused_filters(folder: Path) -> list[Path]:
    """The files of a folder that look like filters, but are none."""
    used = [find_filter(folder, split) for split in FILTERS]
    return [path for path in find_files(folder, "*filter*.*") if path not in used]


def read_filter(path: Path | None, rows: int, labels: int) -> Int[np.ndarray, "pair 2"]:
    """Read the pairs of a filter file. An empty file has no pairs.

    Args:
        path: The filter file of the split; None if there is none.

    Raises:
        DatasetError: If a line does not hold two integers in range.
    """
    if path is None:
        return np.empty((0, 2), dtype=np.int64)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*no data.*")
            pairs = np.loadtxt((line for _, line in read_lines(path)), dtype=np.int64, ndmin=2)
    except ValueError as error:
        raise DatasetError(f"{path}: expected two integers a line (row, label position), found: {error}") from None
    if pairs.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if pairs.shape[1] != 2:
        raise DatasetError(f"{path}: expected two integers a line (row, label position), found {pairs.shape[1]}")
    outside = (pairs < 0).any(axis=1) | (pairs >= [rows, labels]).any(axis=1)
    if outside.any():
        line = int(np.flatnonzero(outside)[0])
        row, label = pairs[line]
        raise DatasetError(
            f"{path}:{line + 1}: pair ({row}, {label}) is out of range; expected rows below {rows:,} "
            f"and labels below {labels:,}"
        )
    return pairs
