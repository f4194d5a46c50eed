"""Reading an input in blocks of rows. Only as many rows are in memory as the workers need next.

The reader finds where rows begin and end. The workers parse the rows, because this takes longer.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from recollect.service.bulk.blocks import BLOCK_ROWS, Block, Input
from recollect.service.bulk.formats import Format
from recollect.service.errors import InputError

# A block of lines ends when it has so many bytes.
_BLOCK_BYTES = 1 << 20
# Maximum length of a line, and of a value in a CSV file.
_MAX_LINE_BYTES = 64 << 20


@contextlib.contextmanager
def open_input(path: Path | None, format_: Format, name: str) -> Iterator[Input]:
    """Open an input, and close it at the end.

    Args:
        path: The file; None means standard input.
        format_: Its format.
        name: Its name in messages.

    Raises:
        InputError: If the input is not of this format.
        OSError: If the file does not open.
    """
    if format_.name == "parquet":
        from recollect.service.bulk.parquet_input import ParquetInput

        assert path is not None
        with contextlib.closing(ParquetInput(path, name)) as parquet:
            yield parquet
        return
    # Unbuffered: a read returns as soon as a pipe has some bytes.
    with io.FileIO(0 if path is None else path, closefd=path is not None) as file:
        source = _Bytes(file, name, format_.gzip)
        if format_.name == "csv":
            yield CsvInput(source)
        else:
            yield LineInput(source, ["text"] if format_.name == "text" else None)


class _Bytes:
    """The bytes of a file or of standard input, decompressed if necessary."""

    def __init__(self, file: io.FileIO, name: str, compressed: bool) -> None:
        self.name, self._file = name, file
        self._content: io.FileIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if compressed else file
        status = os.fstat(file.fileno())
        self._size = status.st_size if stat.S_ISREG(status.st_mode) else 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; no bytes at the end."""
        try:
            return self._content.read(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{self.name}: expected a complete gzip file, found: {error}") from None

    def share_read(self) -> float | None:
        return self._file.tell() / self._size if self._size else None


class LineInput:
    """An input whose rows are lines: texts or JSON objects. The payload of a block is its lines."""

    def __init__(self, source: _Bytes, columns: list[str] | None) -> None:
        self.name, self.columns, self.empty, self._source = source.name, columns, None, source

    def share_read(self) -> float | None:
        return self._source.share_read()

    def blocks(self, skip: int, columns: Sequence[str]) -> Iterator[Block]:
        row = 0
        for lines in self._lines():
            unread = lines[max(0, skip - row) :]
            row += len(lines) - len(unread)
            while unread:
                count = _fitting(unread)
                yield Block(row, count, b"\n".join(unread[:count]))
                unread, row = unread[count:], row + count

    def _lines(self) -> Iterator[list[bytes]]:
        """All lines without their ends, as many at a time as one read completes."""
        rest, row = b"", 0
        while chunk := self._source.read(_BLOCK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            row += len(lines)
            if len(rest) > _MAX_LINE_BYTES:
                raise InputError(f"{self.name}: line {row + 1}: expected at most {_MAX_LINE_BYTES:,} bytes, found more")
            yield lines
        if rest:
            yield [rest]


def _fitting(lines: list[bytes]) -> int:
    """The number of lines in the next block."""
    size = 0
    for count, line in enumerate(lines[:BLOCK_ROWS]):
        size += len(line)
        if size > _BLOCK_BYTES and count:
            return count
    return min(len(lines), BLOCK_ROWS)


class CsvInput:
    """A CSV file with a header. The payload of a block is a JSON list of the header and the rows.

    Raises:
        InputError: If the header is missing or names a column twice.
    """

    def __init__(self, source: _Bytes) -> None:
        self.name, self.empty, self._source = source.name, None, source
        csv.field_size_limit(_MAX_LINE_BYTES)
        self._rows = csv.reader(_decoded(source), strict=True)
        with self._errors(0):
            self.columns: list[str] | None = next(self._rows, [])
        if not self.columns or len(set(self.columns)) < len(self.columns):
            found = ", ".join(self.columns) or "an empty file"
            raise InputError(f"{source.name}: expected a header with different names of columns, found {found}")

    def share_read(self) -> float | None:
        return self._source.share_read()

    def blocks(self, skip: int, columns: Sequence[str]) -> Iterator[Block]:
        assert self.columns is not None
        first, rows, size, row = skip, list[list[str]](), 0, 0
        try:
            while True:
                with self._errors(row + 1):
                    values = next(self._rows, None)
                if values is None:
                    break
                if not values:  # an empty line
                    continue
                row += 1
                if len(values) != len(self.columns):
                    raise InputError(
                        f"{self.name}: row {row}: expected {len(self.columns)} values, found {len(values)}"
                    )
                if row <= skip:
                    continue
                rows.append(values)
                size += sum(map(len, values))
                if len(rows) == BLOCK_ROWS or size > _BLOCK_BYTES:
                    yield Block(first, len(rows), json.dumps([self.columns, *rows]).encode())
                    first, rows, size = row, [], 0
        except InputError:
            if rows:
                yield Block(first, len(rows), json.dumps([self.columns, *rows]).encode())
            raise
        if rows:
            yield Block(first, len(rows), json.dumps([self.columns, *rows]).encode())

    @contextlib.contextmanager
    def _errors(self, row: int) -> Iterator[None]:
        try:
            yield
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{self.name}: row {row}: expected CSV in UTF-8, found: {error}") from None


def _decoded(source: _Bytes) -> Iterator[str]:
    """The lines of a file in UTF-8, with their ends."""
    raw = _Raw(source)
    return io.TextIOWrapper(io.BufferedReader(raw, _BLOCK_BYTES), encoding="utf-8-sig", newline="")


class _Raw(io.RawIOBase):
    """`_Bytes` as a raw stream of Python's io module."""

    def __init__(self, source: _Bytes) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # the buffer is always a memoryview
        content = self._source.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
