"""Sparse matrices in files: scipy's compressed archives (.npz), and the text format of xclib.

The text format has a line with the numbers of rows and columns, then a line `column:value column:value ...` for each
row. Columns count from 0. A row may be empty.
"""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.lines import read_lines
from recollect.trainer.data.formats.relevance import check_finite, true_labels
from recollect.trainer.data.split import Entries, Split
from recollect.trainer.errors import DatasetError

# Number of lines that are parsed at once.
_CHUNK_LINES = 65_536


def read_matrix(path: Path) -> sparse.csr_matrix:
    """Read a sparse matrix of 64-bit floats. Repeated entries are added.

    Raises:
        DatasetError: If the file holds no sparse matrix.
    """
    return _read_archive(path) if path.suffix == ".npz" else _read_text(path)


def check_shape(matrix: sparse.csr_matrix, path: Path, shape: tuple[int, int], meaning: str) -> None:
    """Check the shape of a matrix.

    Raises:
        DatasetError: If the shape differs.
    """
    if matrix.shape != shape:
        raise DatasetError(
            f"{path}: expected {shape[0]:,} x {shape[1]:,} ({meaning}), found {matrix.shape[0]:,} x {matrix.shape[1]:,}"
        )


def read_relevance(path: Path, texts: Entries, labels: Entries, rule: TextRule, meaning: str) -> Split:
    """Read a relevance matrix with the axes (text, label), and make a split of it.

    Blank lines at the end of the files of texts and of labels need no row and no column.

    Args:
        rule: Reports the number of values that are not above 0.

    Raises:
        DatasetError: If the numbers of texts or of labels differ, or a value is not finite.
    """
    matrix = read_matrix(path)
    rows, columns = matrix.shape
    texts = texts.without_blank_end(rows)
    if columns == len(labels.without_blank_end(columns)):
        matrix.resize(rows, len(labels))
    check_shape(matrix, path, (len(texts), len(labels)), meaning)
    check_finite(matrix.data, lambda entry: f"{path}: row {np.searchsorted(matrix.indptr, entry, 'right')}")
    return Split(texts, true_labels(matrix, path, rule))


def _read_archive(path: Path) -> sparse.csr_matrix:
    if not zipfile.is_zipfile(path):
        raise DatasetError(
            f"{path}: expected a sparse matrix as scipy.sparse.save_npz writes it, found a file that is no zip archive"
        )
    try:
        loaded = sparse.load_npz(path)  # load_npz never unpickles objects
        if loaded.format in ("csr", "csc", "bsr"):
            loaded.check_format(full_check=True)  # csr_matrix does not check the indices
        if loaded.dtype.kind not in "biuf":
            raise TypeError(f"values of the type {loaded.dtype}")
        matrix = sparse.csr_matrix(loaded.astype(np.float64))
        matrix.sum_duplicates()
        return matrix
    except Exception as error:  # zipfile, numpy and scipy raise many kinds of errors
        raise DatasetError(
            f"{path}: expected a sparse matrix as scipy.sparse.save_npz writes it, found: {error}"
        ) from None


def _read_text(path: Path) -> sparse.csr_matrix:
    lines = (line for _, line in read_lines(path))
    rows, columns = _read_header(path, next(lines, ""))
    counts, chunks, number = [], [np.empty((0, 2))], 2
    while chunk := list(itertools.islice(lines, _CHUNK_LINES)):
        chunks.append(_parse(path, number, chunk, columns))
        counts += [line.count(":") for line in chunk]
        number += len(chunk)
    while len(counts) > rows and counts[-1] == 0:  # blank lines at the end
        counts.pop()
    if len(counts) != rows:
        raise DatasetError(f"{path}: expected {rows:,} rows, as its first line states, found {len(counts):,}")
    entries = np.concatenate(chunks)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    matrix = sparse.csr_matrix((entries[:, 1], entries[:, 0].astype(np.int32), indptr), shape=(rows, columns))
    matrix.sum_duplicates()
    return matrix


def _read_header(path: Path, line: str) -> tuple[int, int]:
    try:
        rows, columns = map(int, line.split())
        if min(rows, columns) < 0:
            raise ValueError
    except ValueError:
        raise DatasetError(
            f"{path}:1: expected two numbers, the rows and the columns of the matrix, found {line[:40]!r}"
        ) from None
    return rows, columns


def _parse(path: Path, first: int, lines: Sequence[str], columns: int) -> np.ndarray:
    """Parse the entries of some lines, as an array with the axes (entry, column and value)."""
    try:
        entries = [entry.split(":") for line in lines for entry in line.split()]
        numbers = np.array(entries, dtype=np.float64).reshape(-1, 2)
        column = numbers[:, 0]
        if not np.isfinite(numbers).all() or (column != np.floor(column)).any():
            raise ValueError
    except ValueError:
        if len(lines) > 1:  # look for the bad line
            for number, line in enumerate(lines, start=first):
                _parse(path, number, [line], columns)
        raise DatasetError(f"{path}:{first}: expected entries like 3:1.0, found {lines[0][:40]!r}") from None
    outside = (column < 0) | (column >= columns)
    if outside.any():
        ends = np.cumsum([line.count(":") for line in lines])
        number = first + int(np.searchsorted(ends, np.flatnonzero(outside)[0], "right"))
        raise DatasetError(
            f"{path}:{number}: column {int(column[outside][0])} is out of range; expected 0 to {columns - 1}"
        )
    return numbers
