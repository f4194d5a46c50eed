"""Parquet files as input."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recollect.service.bulk.blocks import BLOCK_ROWS, Block
from recollect.service.errors import InputError


class ParquetInput:
    """A Parquet file. The payload of a block is an Arrow stream.

    Raises:
        InputError: If the file is not a Parquet file.
        OSError: If the file does not open.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name, self._read = name, 0
        path.open("rb").close()  # for a missing file: the system's error instead of Arrow's
        with self._errors():
            self._file = pq.ParquetFile(path)
        self._rows: int = self._file.metadata.num_rows
        self.columns: list[str] | None = self._file.schema_arrow.names
        self.empty = pa.RecordBatch.from_pylist([], self._file.schema_arrow)

    def close(self) -> None:
        self._file.close()

    def share_read(self) -> float | None:
        return self._read / max(1, self._rows)

    def blocks(self, skip: int, columns: Sequence[str]) -> Iterator[Block]:
        metadata, first, groups = self._file.metadata, 0, list(range(self._file.metadata.num_row_groups))
        while groups and first + metadata.row_group(groups[0]).num_rows <= skip:
            first += metadata.row_group(groups.pop(0)).num_rows
        with self._errors():
            for batch in self._file.iter_batches(BLOCK_ROWS, row_groups=groups, columns=list(columns)):
                unread = batch.slice(max(0, skip - first))
                first += len(batch)
                self._read = first
                if len(unread):
                    yield Block(first - len(unread), len(unread), to_stream(unread))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # an error of the disk
                raise
            reason = str(error).partition("\n")[0]
            raise InputError(f"{self.name}: expected a Parquet file that can be read, found: {reason}") from None


def to_stream(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    """A batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def parse_stream(payload: bytes, text_column: str, columns: Sequence[str]) -> tuple[list[Any], pa.RecordBatch]:
    """The texts of a block, and the columns that pass into the output."""
    batch = pa.ipc.open_stream(payload).read_next_batch()
    return batch.column(text_column).to_pylist(), batch.select(list(columns))


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch as Python objects. Times in nanoseconds, for which Python has no type, become text."""
    columns = [
        column.cast(pa.string()) if pa.types.is_temporal(column.type) and "[ns" in str(column.type) else column
        for column in batch.columns
    ]
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()
    return rows
