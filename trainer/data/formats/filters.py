"""Filter files: pairs (row, label), both counted from 0. The label is removed from the predictions for the row.

In product-to-product data, a query and a label can be the same product. Predicting this label is trivial.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from jaxtyping import Int

from recollect.trainer.data.formats.lines import read_lines
from recollect.trainer.errors import DatasetError


def read_filter(path: Path, rows: int, labels: int) -> Int[np.ndarray, "pair 2"]:
    """Read the pairs of a filter file. An absent or empty file has no pairs.

    Args:
        path: `filter_labels_train.txt` or `filter_labels_test.txt`.
        rows: Number of texts in the split.
        labels: Number of labels.

    Raises:
        DatasetError: If a line does not hold two integers in range.
    """
    if not path.is_file():
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
