"""Click logs in Parquet: one row for each click.

    train.parquet  test.parquet   query text, label uid[, weight]
    labels.parquet                label uid, label text

Each of these paths is one Parquet file, or a folder of Parquet files, which may differ in their columns. The weight is
1 in a file without weights. Rows with the same query text become one instance. The weights of rows with the same query
and label are added. The instance has the label if the sum is positive.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from scipy import sparse

from recollect.core.system.files import HIDDEN
from recollect.core.texts import holds_texts
from recollect.trainer.data.formats.fields import EMPTY, TextRule
from recollect.trainer.data.formats.relevance import check_finite, true_labels
from recollect.trainer.data.split import Entries, Split, SplitName, blank_rows, row_numbers
from recollect.trainer.errors import DatasetError

EXPECTED = "labels.parquet and train.parquet"
TEXT_FIELDS: tuple[str, ...] = ()

_Part = tuple[str, pa.Table]  # a file and its rows

_QUERY = ("query", "query_text", "text")
_LABEL = ("label", "label_uid", "uid")
_WEIGHT = ("weight",)
_TEXT = ("text", "label_text")


def recognises(folder: Path) -> bool:
    return (folder / "labels.parquet").exists()


def read_labels(folder: Path, rule: TextRule) -> tuple[Path, Entries]:
    path = folder / "labels.parquet"
    parts = _read_parts(path)
    return path, Entries(_read_strings(parts, _LABEL), _read_strings(parts, _TEXT, rule.may_be_empty))


def read_split(folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]:
    path = folder / f"{name}.parquet"
    parts = _read_parts(path)
    encoded = _read_strings(parts, _QUERY, rule.may_be_empty).dictionary_encode()
    queries = encoded.dictionary
    rows = encoded.indices.to_numpy().astype(np.int64)
    columns = _label_positions(_read_strings(parts, _LABEL), labels, path, rule)
    known = columns >= 0
    weights = np.concatenate([_weights(table, file) for file, table in parts])
    clicks = weights[known], (rows[known], columns[known])
    relevance = sparse.coo_matrix(clicks, shape=(len(queries), len(labels))).tocsr()
    return path, Split(Entries(row_numbers(len(queries)), queries), true_labels(relevance, path, rule))


def _read_parts(path: Path) -> list[_Part]:
    """The rows of a Parquet file, or of each Parquet file of a folder."""
    if not path.exists():
        raise DatasetError(f"{path}: expected a Parquet file or a folder of Parquet files, found nothing")
    file, parts, ignored = str(path), list[_Part](), [".", "_", *HIDDEN]
    try:
        for file in pads.dataset(path, format="parquet", schema=pa.schema([]), ignore_prefixes=ignored).files:
            parts.append((file, pq.read_table(file, partitioning=None)))
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{file}: expected Parquet, found: {str(error).splitlines()[0]}") from None
    if not parts:
        raise DatasetError(f"{path}: expected a folder of Parquet files, found no file in it")
    return parts


def _find_column(table: pa.Table, names: tuple[str, ...]) -> pa.ChunkedArray | None:
    return next((table.column(name) for name in names if name in table.column_names), None)


def _read_strings(parts: list[_Part], names: tuple[str, ...], may_be_empty: bool = False) -> pa.LargeStringArray:
    return pa.concat_arrays([_strings(table, names, file, may_be_empty) for file, table in parts])


def _strings(table: pa.Table, names: tuple[str, ...], path: str, may_be_empty: bool) -> pa.LargeStringArray:
    column = _find_column(table, names)
    if column is None:
        raise DatasetError(f"{path}: expected a column {' or '.join(names)}, found {', '.join(table.column_names)}")
    if not (holds_texts(column.type) or pa.types.is_integer(column.type)):
        raise DatasetError(f"{path}: expected column {names[0]!r} to hold strings, found {column.type}")
    strings = pa.concat_arrays(column.cast(pa.large_string()).chunks or [pa.array([], type=pa.large_string())])
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DatasetError(f"{path}: expected column {names[0]!r} to hold UTF-8, found: {error}") from None
    strings = pc.fill_null(strings, "")
    if not may_be_empty and len(blank := np.flatnonzero(blank_rows(strings))):
        row = int(blank[0])
        problem = "the uid is empty; add one" if names == _LABEL else EMPTY
        raise DatasetError(f"{path}: row {row + 1}: {names[0]!r}: {problem}")
    return strings


def _label_positions(uids: pa.LargeStringArray, labels: Entries, path: Path, rule: TextRule) -> np.ndarray:
    """The position of each label; -1 for an unknown label that is dropped."""
    positions = pc.index_in(uids, value_set=labels.uids)
    if positions.null_count:
        row = int(np.flatnonzero(positions.is_null().to_numpy(zero_copy_only=False))[0])
        if rule.unknown_labels == "refuse":
            raise DatasetError(
                f"{path}: row {row + 1}: label uid {uids[row].as_py()!r} is unknown; expected one of the "
                f"{len(labels):,} uids of labels.parquet: add it there, remove the row, or choose --unknown-labels drop"
            )
        rule.report_unknown(path, positions.null_count, f"{path}: row {row + 1}: {uids[row].as_py()}")
    return np.asarray(positions.fill_null(-1).to_numpy(), dtype=np.int64)


def _weights(table: pa.Table, path: str) -> np.ndarray:
    """The weight of each row: 1 in a file without weights."""
    column = _find_column(table, _WEIGHT)
    if column is None:
        return np.ones(len(table))
    try:
        weights = np.asarray(column.cast(pa.float64()).to_numpy())
    except pa.ArrowException as error:
        raise DatasetError(f"{path}: expected column 'weight' to hold numbers, found {column.type} ({error})") from None
    check_finite(weights, lambda row: f"{path}: row {row + 1}: 'weight'")
    return weights
