"""The forms of `y` in scikit-learn: a matrix of zeros and ones, lists of labels, or one label for each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int
from scipy import sparse

# sparse, dense: a matrix with the axes (text, label). lists: strings for each text. single: one label for each text.
Form = Literal["sparse", "dense", "lists", "single"]


@dataclass(frozen=True)
class Targets:
    """The labels of some texts.

    Attributes:
        form: The form in which they were given.
        classes: The labels: numbers of columns for a matrix, otherwise the distinct labels, sorted.
        matrix: Zeros and ones with the axes (text, label).
    """

    form: Form
    classes: np.ndarray
    matrix: sparse.csr_array

    def rows(self) -> list[list[int]]:
        """The columns of the labels of each text."""
        return [row.tolist() for row in np.split(self.matrix.indices, self.matrix.indptr[1:-1])]


def read_targets(y: Any, texts: int) -> Targets:
    """Read `y` in any form.

    Args:
        y: The labels.
        texts: Number of texts.

    Raises:
        ValueError: If the form is unknown, a value is not 0 or 1, or the number of rows is wrong.
    """
    if sparse.issparse(y):
        return _read_matrix("sparse", sparse.csr_array(y, copy=True), texts)
    if _is_lists(y):
        return _read_lists([list(row) for row in y], texts)
    try:
        array = np.asarray(y)
    except ValueError:
        array = np.empty((0, 0, 0))  # rows of several lengths: no form
    if array.ndim == 2:
        if array.dtype.kind not in "biuf":
            raise ValueError(f"y: expected a matrix of zeros and ones, found values of the type {array.dtype}")
        return _read_matrix("dense", sparse.csr_array(array), texts)
    if array.ndim == 1 and array.dtype.kind in "biufUO" and all(np.ndim(label) == 0 for label in array):
        _check_rows(len(array), texts)
        classes, columns = np.unique(array, return_inverse=True)
        return Targets("single", classes, _indicator(np.arange(texts + 1), columns, len(classes)))
    raise ValueError(
        "y: expected a matrix of zeros and ones with the axes (text, label), a list of lists of strings, or one label "
        f"for each text, found {type(y).__name__}"
    )


def align(targets: Targets, classes: np.ndarray) -> sparse.csr_array:
    """The matrix of other targets, with a column for each of `classes`; other labels are left out.

    Raises:
        ValueError: If a matrix has another number of columns.
    """
    if targets.form in ("sparse", "dense"):
        if targets.matrix.shape[1] != len(classes):
            raise ValueError(f"y: expected {len(classes):,} columns, found {targets.matrix.shape[1]:,}")
        return targets.matrix
    columns = {label: column for column, label in enumerate(classes.tolist())}
    kept = [[columns[each] for each in targets.classes[row].tolist() if each in columns] for row in targets.rows()]
    return _of_lists(kept, len(classes))


def as_form(form: Form, classes: np.ndarray, matrix: sparse.csr_array) -> Any:
    """Convert a matrix of zeros and ones to the form that `fit` got. With `single`, each row has one label."""
    match form:
        case "sparse":
            return matrix
        case "dense":
            return matrix.toarray()
        case "lists":
            return [classes[columns].tolist() for columns in np.split(matrix.indices, matrix.indptr[1:-1])]
        case "single":
            return classes[matrix.indices]


def _is_lists(y: Any) -> bool:
    is_rows = isinstance(y, (list, tuple)) or (isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1)
    return is_rows and all(
        isinstance(row, (list, tuple, set, frozenset)) and all(isinstance(label, str) for label in row) for row in y
    )


def _read_lists(rows: list[list[str]], texts: int) -> Targets:
    _check_rows(len(rows), texts)
    classes = np.array(sorted({label for row in rows for label in row}), dtype=object)
    columns = {label: column for column, label in enumerate(classes)}
    return Targets("lists", classes, _of_lists([[columns[label] for label in row] for row in rows], len(classes)))


def _read_matrix(form: Form, matrix: sparse.csr_array, texts: int) -> Targets:
    _check_rows(matrix.shape[0], texts)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not (matrix.data == 1).all():
        wrong = matrix.data[matrix.data != 1][0]
        raise ValueError(f"y: expected a matrix of zeros and ones, found the value {wrong}")
    return Targets(form, np.arange(matrix.shape[1]), matrix.astype(np.int8))


def _of_lists(rows: Sequence[Sequence[int]], labels: int) -> sparse.csr_array:
    columns = [sorted(set(row)) for row in rows]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in columns])]).astype(np.int64)
    return _indicator(indptr, np.array([each for row in columns for each in row], dtype=np.int64), labels)


def _indicator(indptr: Int[np.ndarray, " pointer"], columns: Int[np.ndarray, " pair"], labels: int) -> sparse.csr_array:
    return sparse.csr_array((np.ones(len(columns), dtype=np.int8), columns, indptr), shape=(len(indptr) - 1, labels))


def _check_rows(found: int, texts: int) -> None:
    if found != texts:
        raise ValueError(f"y: expected {texts:,} rows, as many as texts in X, found {found:,}")
