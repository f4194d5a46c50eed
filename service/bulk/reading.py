"""The input of bulk answers: its format, and its rows in blocks. Only as many rows are in memory as the workers need.

A reader finds where rows begin and end. The workers parse the rows, because this takes longer.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from recollect.service.errors import InputError, SettingsError
from recollect.service.storage.connect import without_credentials
from recollect.service.storage.object_folder import ObjectFolder

# A block has at most so many rows. A worker orders the rows of its block by length, so that padding costs little; with
# fewer rows, more tokens of a batch are padding (128 rows: 12%, 512 rows: 5% more time than 2,048 rows, on titles).
BLOCK_ROWS = 1_024
# A block of lines ends when it has so many bytes.
_BLOCK_BYTES = 1 << 20
# Maximum length of a line, and of a value in a CSV file.
_MAX_LINE_BYTES = 64 << 20

_SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)
_CSV_ERRORS = (csv.Error, UnicodeDecodeError, *_GZIP_ERRORS)


class Format(NamedTuple):
    name: str
    gzip: bool


class Block(NamedTuple):
    """Consecutive rows of the input.

    Attributes:
        first: Number of rows before them.
        rows: Lines (bytes) of texts or JSON, rows of CSV (dicts), or an Arrow record batch.
    """

    first: int
    rows: Any


@dataclass(frozen=True)
class Input:
    """An open input.

    Attributes:
        columns: Names of its columns; None if each row has its own fields.
        blocks: Reads all rows. It may leave out columns that are not in its argument. It raises an InputError if the
            input cannot be read, after the rows before the error.
        share_read: The share of the input that has been read; None if its length is unknown.
        empty: An Arrow record batch with the types of the columns, but without rows; None if the input has no types.
    """

    columns: list[str] | None
    blocks: Callable[[list[str]], Iterator[Block]]
    share_read: Callable[[], float | None]
    empty: Any = None


def recognise(flag: str, path: Path | str | None, chosen: str | None) -> Format:
    """The format of a file by its suffix, unless one is chosen. None is standard input or output.

    Raises:
        SettingsError: If the suffix is of no known format, or Parquet cannot have this path.
    """
    name = str(path).rpartition("/")[2].lower() if path else ""
    known = {suffix: kind for suffix, kind in _SUFFIXES.items() if flag == "--input" or kind != "text"}
    found = Format(chosen or known.get(Path(name.removesuffix(".gz")).suffix, ""), name.endswith(".gz"))
    if not found.name:
        shown = without_credentials(path) if isinstance(path, str) else path
        hint = "; use --input-format" if flag == "--input" else ""
        raise SettingsError(f"{flag}: expected a name that ends in one of {', '.join(known)}, found {shown}{hint}")
    if found.name == "parquet" and (path is None or found.gzip):
        shown = "standard input" if path is None else name
        raise SettingsError(f"{flag}: expected an uncompressed file for parquet, found {shown}")
    return found


@contextlib.contextmanager
def local_input(source: Path | str | None) -> Iterator[tuple[Path | None, str, dict[str, Any] | None]]:
    """The file of an input, its name in messages, and facts by which a later run recognises it.

    The file is None for standard input, and a temporary copy for a URL. The facts are None if the input cannot be read
    again.

    Raises:
        InputError: If there is no file at the URL.
        StoreError: If it cannot be read.
    """
    if source is None:
        yield None, "standard input", None
    elif isinstance(source, Path):
        yield source, str(source), _facts(source.stat()) if source.is_file() else None
    else:
        folder, name = split_url(source, "--input")
        if not folder.has(name):
            raise InputError(f"{folder.name}/{name}: expected a file, found none; check the URL")
        digest = hashlib.sha256()
        with tempfile.TemporaryDirectory(prefix="recollect-") as temporary:
            path = Path(temporary) / name
            with path.open("wb") as file:
                for piece in folder.pieces(name):
                    file.write(piece)
                    digest.update(piece)
            yield path, without_credentials(source), {"input sha256": digest.hexdigest()}


def split_url(url: str, flag: str) -> tuple[ObjectFolder, str]:
    """The folder of a file at a URL, and the file's name."""
    parent, _, name = url.rpartition("/")
    if not name or parent.endswith(("/", ":")):
        raise SettingsError(f"{flag}: expected the URL of a file, such as s3://bucket/file.jsonl, found {parent}/")
    return ObjectFolder(parent), name


def _facts(status: os.stat_result) -> dict[str, Any]:
    changed = datetime.fromtimestamp(status.st_mtime_ns // 10**9, UTC).isoformat()
    return {"input bytes": status.st_size, "input changed": f"{changed} {status.st_mtime_ns % 10**9}"}


@contextlib.contextmanager
def open_input(path: Path | None, format_: Format, name: str) -> Iterator[Input]:
    """Open an input of lines or CSV, and close it at the end.

    Args:
        path: The file; None means standard input.
        format_: Its format.
        name: Its name in messages.

    Raises:
        InputError: If the input is not of this format.
        OSError: If the file does not open.
    """
    # Unbuffered: a read returns as soon as a pipe has some bytes.
    with io.FileIO(0 if path is None else path, closefd=path is not None) as file:
        size = os.fstat(file.fileno()).st_size
        content = gzip.GzipFile(fileobj=file) if format_.gzip else file

        def share_read() -> float | None:
            return file.tell() / size if size else None

        if format_.name == "csv":
            csv.field_size_limit(_MAX_LINE_BYTES)
            buffered = io.BufferedReader(content, _BLOCK_BYTES) if isinstance(content, io.FileIO) else content
            rows = csv.reader(io.TextIOWrapper(buffered, encoding="utf-8-sig", newline=""), strict=True)
            header = _csv_header(rows, name)
            yield Input(header, lambda _: _csv_blocks(rows, header, name), share_read)
        else:
            columns = ["text"] if format_.name == "text" else None
            yield Input(columns, lambda _: _line_blocks(content, name), share_read)


def _line_blocks(content: io.FileIO | gzip.GzipFile, name: str) -> Iterator[Block]:
    """Blocks of lines without their ends. A read of a pipe ends a block, so that its lines are answered at once."""
    rest, row = b"", 0
    try:
        while chunk := content.read(_BLOCK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for block in _cut(lines):
                yield Block(row, block)
                row += len(block)
            if len(rest) > _MAX_LINE_BYTES:
                raise InputError(f"{name}: line {row + 1}: expected at most {_MAX_LINE_BYTES:,} bytes, found more")
    except _GZIP_ERRORS as error:
        raise InputError(f"{name}: expected a complete gzip file, found: {error}") from None
    if rest:
        yield Block(row, [rest])


def _cut(lines: list[bytes]) -> Iterator[list[bytes]]:
    block, size = list[bytes](), 0
    for line in lines:
        if block and (len(block) == BLOCK_ROWS or size + len(line) > _BLOCK_BYTES):
            yield block
            block, size = [], 0
        block.append(line)
        size += len(line)
    if block:
        yield block


def _csv_header(rows: Iterator[list[str]], name: str) -> list[str]:
    try:
        columns = next(rows, [])
    except _CSV_ERRORS as error:
        raise InputError(f"{name}: expected CSV in UTF-8, found: {error}") from None
    if not columns or len(set(columns)) < len(columns):
        found = ", ".join(columns) or "an empty file"
        raise InputError(f"{name}: expected a header with different names of columns, found {found}")
    return columns


def _csv_blocks(rows: Iterator[list[str]], columns: list[str], name: str) -> Iterator[Block]:
    first, block, size = 0, list[dict[str, str]](), 0
    try:
        for values in filter(None, rows):  # without empty lines
            if len(values) != len(columns):
                raise csv.Error(f"{len(values)} values for {len(columns)} columns")
            block.append(dict(zip(columns, values, strict=True)))
            size += sum(map(len, values))
            if len(block) == BLOCK_ROWS or size > _BLOCK_BYTES:
                yield Block(first, block)
                first, block, size = first + len(block), [], 0
    except _CSV_ERRORS as error:
        if block:
            yield Block(first, block)
        row = first + len(block) + 1
        raise InputError(f"{name}: row {row}: expected CSV in UTF-8, found: {error}") from None
    if block:
        yield Block(first, block)
