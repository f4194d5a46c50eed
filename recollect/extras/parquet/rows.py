"""Parquet files as input and output of bulk answers.

A worker writes a block as an Arrow stream. The streams of all blocks are appended to one file, which becomes a Parquet
file at the end: a Parquet file without its end cannot be continued after a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recollect.bulk.reading import BLOCK_ROWS, Group, Input
from recollect.core.answers import EXPLANATION, LABEL_FIELDS, ScoredLabel
from recollect.core.bundle.label_fields import LabelFields
from recollect.core.errors import InputError, SettingsError
from recollect.core.texts import holds_texts

# A row group of the output has at least so many rows or bytes, except the last one.
_GROUP_ROWS, _GROUP_BYTES = 65_536, 64 << 20

# Decimals with at most so many digits are equal after a conversion to a 64-bit float and back.
_FLOAT_DIGITS = 15

_TYPES: dict[Any, pa.DataType] = {str: pa.string(), float: pa.float64()}


@contextlib.contextmanager
def open_rows(path: Path, name: str) -> Iterator[Input]:
    """Open a Parquet file as an input.

    Raises:
        InputError: If the file is not a Parquet file.
        OSError: If the file does not open.
    """
    rows = 0

    def groups(columns: list[str]) -> Iterator[Group]:
        nonlocal rows
        with _errors(name):
            for batch in file.iter_batches(BLOCK_ROWS, columns=columns):
                batch.validate(full=True)  # a string may be no UTF-8
                yield Group(batch, range(rows + 1, rows + len(batch) + 1), [None] * len(batch))
                rows += len(batch)

    path.open("rb").close()  # for a missing file: the system's error instead of Arrow's
    with _errors(name):
        file = pq.ParquetFile(path)
    with file:
        empty = pa.RecordBatch.from_pylist([], file.schema_arrow)
        yield Input(empty.schema.names, groups, lambda: rows / max(1, file.metadata.num_rows), empty)


@contextlib.contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the disk
            raise
        reason = str(error).partition("\n")[0]
        raise InputError(f"{name}: expected a Parquet file that can be read, found: {reason}") from None


def check_columns(empty: pa.RecordBatch, queries: str, column: str, kept: Sequence[str], output_format: str) -> None:
    """Check the types of the columns of an input.

    Args:
        empty: A batch with the types.
        queries: Whether the queries are `text` or `vector`.
        column: The column with the queries.
        kept: The columns that pass into the output.
        output_format: Format of the output. Neither JSON nor CSV has a type for bytes.

    Raises:
        SettingsError: If the column of queries holds other values, or a kept column bytes that the output has not.
    """
    kind = empty.schema.field(column).type
    if queries == "text" and not holds_texts(kind):
        raise SettingsError(f"--text-column: expected texts in {column}, found the type {kind}")
    if queries == "vector" and not _holds_numbers(kind):
        raise SettingsError(f"--vector-column: expected lists of numbers in {column}, found the type {kind}")
    for name in kept if output_format != "parquet" else ():
        if _holds_bytes(empty.schema.field(name).type):
            raise SettingsError(
                f"--columns: the column {name} holds bytes, which {output_format} has not; name the columns to keep "
                "without it, or write Parquet"
            )


def _holds_numbers(kind: pa.DataType) -> bool:
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    return bool(types.is_floating(kind.value_type) or types.is_integer(kind.value_type))


def _holds_bytes(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return not isinstance(kind, pa.UuidType) and _holds_bytes(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    tests = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary
    return any(test(kind) for test in tests) or any(_holds_bytes(kind.field(n).type) for n in range(kind.num_fields))


def rows_of(batch: pa.RecordBatch, exact_decimals: bool) -> list[dict[str, Any]]:
    """The rows of a batch as Python objects that JSON has.

    Dates and times become text such as `2026-01-31` and `2026-01-31 12:00:00`. Decimals become text; without
    `exact_decimals`, those that a 64-bit float represents exactly enough become numbers.
    """
    columns = [
        _cast(name, column, _plain_type(column.type, exact_decimals))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    for place, column in enumerate(batch.columns):
        if pa.types.is_timestamp(column.type) or pa.types.is_time(column.type):
            columns[place] = pc.replace_substring_regex(columns[place], r"\.0+(Z|[+-][0-9]+)?$", r"\1")
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()
    return rows


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind, safe=False)
    except pa.ArrowException as error:  # for example, a time zone that this machine does not know
        raise InputError(
            f"--columns: expected a column {name} that can become text, found: {error}; name the columns to keep "
            "without it, or write Parquet"
        ) from None


def _plain_type(kind: pa.DataType, exact_decimals: bool) -> pa.DataType:
    """The type to which a column is cast before it becomes Python objects."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pa.string()  # Python has no nanoseconds and no year 10,000
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_decimal(kind):
        return pa.float64() if kind.precision <= _FLOAT_DIGITS and not exact_decimals else pa.string()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type, exact_decimals)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type, exact_decimals), _plain_type(kind.item_type, exact_decimals))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain_type(kind.value_type, exact_decimals)))
    return kind


def _struct(record: Any, names: Iterable[str]) -> pa.DataType:
    """The type of the named tuples of an answer."""
    types = get_type_hints(record)
    return pa.struct([(name, _type(types[name])) for name in names])


def _type(kind: Any) -> pa.DataType:
    if hasattr(kind, "_fields"):
        return _struct(kind, kind._fields)
    if get_origin(kind) is list:
        return pa.list_(_type(*get_args(kind)))
    return _TYPES[kind] if kind in _TYPES else _type(get_args(kind)[0])  # a type or None


def _field_type(name: str) -> pa.DataType | None:
    """The type of a field of labels; None: its values are written as JSON."""
    kind = get_type_hints(LabelFields).get(name, dict)
    return None if kind is dict or get_origin(kind) is dict else _type(kind)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def encode_batch(kept: Any, answers: Sequence[dict[str, Any]], explain: bool, fields: Iterable[str] = ()) -> bytes:
    """Rows and their answers as an Arrow stream.

    Args:
        kept: The columns that pass into the output: a record batch, or a dict of texts for each column.
        answers: The fields of the answer to each row.
        explain: Whether the labels have the terms of their scores.
        fields: The fields that the labels have if they are known.
    """
    columns = (
        {name: pa.array(texts, pa.string()) for name, texts in kept.items()}
        if isinstance(kept, dict)
        else dict(zip(kept.schema.names, kept.columns, strict=True))
    )
    label = _struct(ScoredLabel, [name for name in LABEL_FIELDS if explain or name not in EXPLANATION])
    types = {name: _field_type(name) for name in fields if name not in LABEL_FIELDS}
    as_json = [name for name, kind in types.items() if kind is None]
    labels = [each["labels"] for each in answers]
    if types:
        label = pa.struct([*label, *(pa.field(name, kind or pa.string()) for name, kind in types.items())])
        labels = [
            [label | {name: _as_json(label[name]) for name in as_json if name in label} for label in found]
            for found in labels
        ]
    columns["labels"] = pa.array(labels, pa.list_(label))
    columns["truncated"] = pa.array([each.get("truncated", False) for each in answers], pa.bool_())
    columns["exhausted"] = pa.array([each.get("exhausted", False) for each in answers], pa.bool_())
    columns["error"] = pa.array([each.get("error") for each in answers], pa.string())
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def convert(streams: Path, to: Path) -> None:
    """Write a Parquet file with all rows of a file of Arrow streams; one row group at a time is in memory."""
    with pa.OSFile(str(streams)) as source, to.open("wb") as target:
        batches = list(pa.ipc.open_stream(source))
        with pq.ParquetWriter(target, batches[0].schema, compression="zstd") as writer:
            while source.tell() < source.size():
                batches += pa.ipc.open_stream(source)
                if sum(map(len, batches)) >= _GROUP_ROWS or sum(each.nbytes for each in batches) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(batches))
                    batches = []
            if batches:
                writer.write_table(pa.Table.from_batches(batches))
        target.flush()
        os.fsync(target.fileno())
