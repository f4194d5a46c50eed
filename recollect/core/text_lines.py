"""Lines of text files in UTF-8, plain or gzip. Errors name the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from recollect.core.errors import InputError, RecollectError
from recollect.core.texts import is_blank

_READ_BYTES = 1 << 20
_MAX_VALUE_CHARACTERS = 64 << 20
# The first bytes of files in other encodings. Text in UTF-16 begins with a byte order mark, or has a byte 0.
_UTF_16, _GZIP = (b"\xff\xfe", b"\xfe\xff"), b"\x1f\x8b"


def read_lines(
    path: Path, error: type[RecollectError] = InputError, keep_ends: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield each line number of a file, from 1, with the line; see `read_stream`."""
    with io.FileIO(path) as file:
        lines = read_stream(file, str(path), path.suffix == ".gz", error, keep_ends)
        yield from enumerate((line for line in lines if line is not None), start=1)


def read_stream(
    file: io.FileIO, name: str, is_gzip: bool, error: type[RecollectError] = InputError, keep_ends: bool = False
) -> Iterator[str | None]:
    r"""Yield the lines of an open file, and None after each read, because the next read of a pipe can wait.

    A line ends with \n or \r\n, or with \r if the first read has no \n. The end of a line and a byte order mark at its
    beginning are removed.

    Args:
        keep_ends: Whether to keep the ends of lines, and all byte order marks but that of the file: they can be part of
            a quoted value of CSV.

    Raises:
        RecollectError: If the file is not UTF-8, or its gzip stream breaks.
    """
    read = gzip.GzipFile(fileobj=file).read1 if is_gzip else file.read
    number, end, begun = 0, b"", list[bytes]()  # `begun` has the parts of a line whose end is not read yet

    def decoded(line: bytes) -> str:
        text = _decode(line, f"{name}:{number}", error)
        if keep_ends:
            return text.lstrip("\ufeff") if number == 1 else text
        return text.rstrip("\r\n").lstrip("\ufeff")

    try:
        while chunk := read(_READ_BYTES):
            if not end:
                if found := _other_encoding(chunk):
                    raise error(f"{name}: expected UTF-8, found {found}")
                end = b"\r" if b"\r" in chunk[:-1] and b"\n" not in chunk else b"\n"
            begun.append(chunk)
            if end in chunk:
                *lines, rest = b"".join(begun).split(end)
                begun = [rest]
                for line in lines:
                    number += 1
                    yield decoded(line + end)
            yield None
    except (EOFError, gzip.BadGzipFile, zlib.error) as broken:
        raise error(f"{name}: the gzip stream breaks after line {number} ({broken}); copy the file again") from None
    if last := b"".join(begun):
        number += 1
        yield decoded(last)


def read_objects(
    path: Path, error: type[RecollectError] = InputError, unique: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line number of a file, from 1, with the JSON object of the line. Blank lines are skipped.

    With `unique`, an object in which a name stands twice is an error.
    """
    try:
        for number, line in read_lines(path, error):
            if not is_blank(line):
                yield number, parse_object(line, unique)
    except ValueError as wrong:
        raise error(f"{path}:{number}: {wrong}") from None
    except OSError as failure:
        raise error(f"{path}: expected a file of JSON lines, found: {failure.strerror}") from None


def parse_object(line: str, unique: bool = False) -> dict[str, Any]:
    """The JSON object of a line; anything else is a ValueError, with `unique` also a name that stands twice."""
    try:
        found, problem = json.loads(line, object_pairs_hook=_unique if unique else None), ""
    except (ValueError, RecursionError) as broken:
        found, problem = None, f" ({broken})"
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found {line[:40]!r}{problem}")
    return found


def is_deeper(value: Any, levels: int) -> bool:
    """Whether a value of JSON has more than so many levels of lists and objects."""
    if not isinstance(value, list | dict):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(child, levels - 1) for child in children)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"expected each name once, found {twice!r} twice")
    return found


def read_csv(
    lines: Iterable[str], name: str, error: type[RecollectError] = InputError, delimiter: str | None = None
) -> tuple[list[str], Iterator[dict[str, str]]]:
    """The columns of the header of CSV lines (with their ends), and the rows after it. Blank lines are skipped.

    A wrong header is an error at once: no columns, or equal ones. A wrong row is one when it is read.

    Args:
        delimiter: None: a comma; or a semicolon if the header has semicolons and no comma, as spreadsheets write CSV
            where numbers have a decimal comma.
    """
    csv.field_size_limit(_MAX_VALUE_CHARACTERS)
    lines, begun = iter(lines), list[str]()
    for line in lines:
        begun.append(line)
        if not is_blank(line):
            break
    if delimiter is None:
        header = "".join(begun)
        delimiter = ";" if ";" in header and "," not in header else ","
    table = csv.reader(itertools.chain(begun, lines), delimiter=delimiter, strict=True)
    try:
        columns = next(itertools.filterfalse(_is_blank_line, table), [])
    except csv.Error as wrong:
        raise error(f"{name}: expected CSV, found: {wrong}") from None
    if not columns or len(set(columns)) < len(columns):
        found = ", ".join(columns) or "an empty file"
        raise error(f"{name}: expected a header with different names of columns, found {found}")
    return columns, _csv_rows(table, columns, name, error)


def _csv_rows(
    table: Iterator[list[str]], columns: list[str], name: str, error: type[RecollectError]
) -> Iterator[dict[str, str]]:
    number = 1
    try:
        for values in table:
            if len(values) != len(columns):
                if _is_blank_line(values):
                    continue
                raise csv.Error(f"{len(values)} values for {len(columns)} columns")
            yield dict(zip(columns, values, strict=True))
            number += 1
    except csv.Error as wrong:
        raise error(f"{name}: row {number}: expected CSV, found: {wrong}") from None


def _is_blank_line(values: list[str]) -> bool:
    return len(values) < 2 and all(map(is_blank, values))


def _other_encoding(head: bytes) -> str | None:
    if head.startswith(_UTF_16) or 0 in head[:2]:
        return "UTF-16; convert the file, for example with iconv -f UTF-16 -t UTF-8"
    return "gzip; the name must end in .gz" if head.startswith(_GZIP) else None


def _decode(line: bytes, where: str, error: type[RecollectError]) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as wrong:
        raise error(
            f"{where}: expected UTF-8, found byte 0x{line[wrong.start]:02x} at column {wrong.start + 1}; "
            "convert the file, for example with iconv"
        ) from None
