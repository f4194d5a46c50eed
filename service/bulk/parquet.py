"""Parquet files as input and output of bulk answers. Only a task with such a file imports this module, and pyarrow.

A worker writes a block as an Arrow stream. The streams of all blocks are appended to one file, which becomes a Parquet
file at the end: a Parquet file without its end cannot be continued after a kill.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recollect.service.bulk.reading import BLOCK_ROWS, Group, Input
from recollect.service.errors import InputError

# A row group of the output has at least so many rows or bytes, except the last one.
_GROUP_ROWS, _GROUP_BYTES = 65_536, 64 << 20

_TEXTS = [("uid", pa.string()), ("text", pa.string())]
_LABEL = [*_TEXTS, ("score", pa.float64()), ("probability", pa.float64())]
_REASON = [("kind", pa.string()), *_TEXTS, ("share", pa.float64()), ("by", pa.string())]
_LOGIT_TERM = [("feature", pa.string()), ("value", pa.float64()), ("log_odds", pa.float64())]
_EXPLAINED = [("because", pa.list_(pa.struct(_REASON))), ("ranked_by", pa.list_(pa.struct(_LOGIT_TERM)))]


@contextlib.contextmanager
def open_parquet(path: Path, name: str) -> Iterator[Input]:
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
                yield Group(batch, range(rows + 1, rows + len(batch) + 1))
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


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch as Python objects. Times in nanoseconds, for which Python has no type, become text."""
    columns = [
        column.cast(pa.string()) if pa.types.is_temporal(column.type) and "[ns" in str(column.type) else column
        for column in batch.columns
    ]
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()
    return rows


def encode_batch(kept: Any, answers: Sequence[dict[str, Any]], explain: bool) -> bytes:
    """Rows and their answers as an Arrow stream.

    Args:
        kept: The columns that pass into the output: a record batch, or a dict of texts for each column.
        answers: The fields of the answer to each row.
        explain: Whether the labels have the terms of their scores.
    """
    columns = (
        {name: pa.array(texts, pa.string()) for name, texts in kept.items()}
        if isinstance(kept, dict)
        else dict(zip(kept.schema.names, kept.columns, strict=True))
    )
    label = pa.struct([*_LABEL, *(_EXPLAINED if explain else [])])
    columns["labels"] = pa.array([each["labels"] for each in answers], pa.list_(label))
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
