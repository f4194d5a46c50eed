"""The input of bulk answers: its format, and its rows in blocks. Only the blocks that workers need soon are read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from recollect.core.errors import InputError, QueryError, SettingsError
from recollect.core.options import check_query
from recollect.core.system.console import print_status
from recollect.core.text_lines import is_deeper, parse_object, read_csv, read_stream
from recollect.core.texts import is_blank
from recollect.store.connect import without_credentials
from recollect.store.object_folder import ObjectFolder

# A block has at most so many rows. A worker orders the rows of its block by length, so that padding costs little; with
# fewer rows, more tokens of a batch are padding (128 rows: 12%, 512 rows: 5% more time than 2,048 rows, on titles).
BLOCK_ROWS = 1_024
# A block ends when its texts have so many characters.
_BLOCK_CHARACTERS = 1 << 20
# A JSON line is nested at most so deep: the libraries that pass it to a worker and write it have limits just above.
_MAX_DEPTH = 200
# The fields of the answer in the output. No column that passes into the output may have one of these names.
ANSWER_COLUMNS = ("labels", "truncated", "exhausted", "error")
# JSON lines can also have these.
ANSWER_FIELDS = (*ANSWER_COLUMNS, "without_words", "reranked", "left_out")

_SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


class Format(NamedTuple):
    name: str
    gzip: bool


class Block(NamedTuple):
    """Consecutive rows of the input."""

    first: int  # number of rows before them
    queries: list[Any]  # texts or `VectorQuery`; None for a wrong one
    errors: list[str | None]  # the reason why a query is not answered
    kept: Any  # the columns that pass into the output: a dict for each row, or an Arrow record batch
    numbers: Sequence[int]  # as in `Group`

    def after(self, rows: int) -> Block:
        """The part of the block after the first rows of the input."""
        done = max(0, rows - self.first)
        rest = slice(done, None)
        return Block(self.first + done, self.queries[rest], self.errors[rest], self.kept[rest], self.numbers[rest])


class Group(NamedTuple):
    """Consecutive rows of the input, as they are read. A line that is no row has an empty dict in `rows`."""

    rows: Any  # a list of dicts, or an Arrow record batch
    numbers: Sequence[int]  # of each row in the input, from 1; of the lines if the input has lines
    problems: Sequence[str | None]  # the reason why a line is no row


class _Row(NamedTuple):
    number: int
    fields: dict[str, Any]
    problem: str | None = None


# None where the next read can wait.
_Rows = Iterator[_Row | None]


@dataclass(frozen=True)
class Input:
    """An open input.

    Attributes:
        columns: Names of its columns; None if each row has its own fields.
        groups: Reads all rows in groups, with at least the columns in its argument. It raises an InputError after the
            rows before the error.
        share_read: The share of the input that has been read; None if its length is unknown.
        empty: An Arrow record batch with the types of the columns, but without rows; None if the input has no types.
    """

    columns: list[str] | None
    groups: Callable[[list[str]], Iterator[Group]]
    share_read: Callable[[], float | None]
    empty: Any = None


def recognise(flag: str, path: Path | str | None, chosen: str | None) -> Format:
    """The format of a file by its suffix, unless one is chosen. None is standard input or output.

    Raises:
        SettingsError: If the suffix is of no known format, or Parquet cannot have this path.
    """
    name = str(path).rpartition("/")[2].lower() if path else ""
    known = {suffix: kind for suffix, kind in _SUFFIXES.items() if flag == "--input" or kind != "text"}
    format_ = Format(chosen or known.get(Path(name.removesuffix(".gz")).suffix, ""), name.endswith(".gz"))
    if not format_.name:
        shown = without_credentials(path) if isinstance(path, str) else path
        hint = "; use --input-format" if flag == "--input" else ""
        raise SettingsError(f"{flag}: expected a name that ends in one of {', '.join(known)}, found {shown}{hint}")
    if format_.name == "parquet" and (path is None or format_.gzip):
        shown = "standard input" if path is None else name
        raise SettingsError(f"{flag}: expected an uncompressed file for parquet, found {shown}")
    return format_


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
    """Open an input of lines or CSV, and close it at the end. No path means standard input.

    Raises:
        InputError: If the input is not of this format.
        OSError: If the file does not open.
    """
    with io.FileIO(0 if path is None else path, closefd=path is not None) as file:
        size = os.fstat(file.fileno()).st_size
        waits = path is None or not path.is_file()
        read = read_stream(file, name, format_.gzip, keep_ends=format_.name == "csv")
        lines = (line for line in read if waits or line is not None)

        def share_read() -> float | None:
            return file.tell() / size if size else None

        columns: list[str] | None
        rows: _Rows
        if format_.name == "csv":
            columns, records = read_csv((line for line in lines if line is not None), name)
            rows = (_Row(number, fields) for number, fields in enumerate(records, start=1))
        elif format_.name == "jsonl":
            columns, rows = None, _parsed(lines, _json_row)
        else:
            columns, rows = ["text"], _parsed(lines, lambda line, number: _Row(number, {"text": line}))
        yield Input(columns, lambda _: _grouped(rows), share_read)


def _parsed(lines: Iterator[str | None], parse: Callable[[str, int], _Row]) -> _Rows:
    """The rows of the lines that are not blank."""
    number = 0
    for line in lines:
        if line is None:
            yield None
            continue
        number += 1
        if not is_blank(line):
            yield parse(line, number)


def _json_row(line: str, number: int) -> _Row:
    try:
        fields = parse_object(line)
    except ValueError as error:
        return _Row(number, {}, str(error))
    if line.count("[") + line.count("{") > _MAX_DEPTH and is_deeper(fields, _MAX_DEPTH):
        return _Row(number, {}, f"expected lists and objects of at most {_MAX_DEPTH} levels, found more")
    return _Row(number, fields)


def _grouped(rows: _Rows) -> Iterator[Group]:
    """Groups of rows. A group ends where the next read can wait, so that its rows are answered at once."""
    group, size, problem = list[_Row](), 0, None
    try:
        for row in rows:
            if row is not None:
                group.append(row)
                size += sum(len(value) for value in row.fields.values() if isinstance(value, str))
            if group and (row is None or len(group) == BLOCK_ROWS or size > _BLOCK_CHARACTERS):
                yield _joined(group)
                group, size = [], 0
    except InputError as error:
        problem = error
    if group:
        yield _joined(group)
    if problem:
        raise problem


def _joined(group: list[_Row]) -> Group:
    return Group([row.fields for row in group], [row.number for row in group], [row.problem for row in group])


def read_blocks(
    rows: Input,
    where: str,
    column: str,
    columns: list[str] | None,
    mark_bad_rows: bool,
    check: Callable[[object], Any] = check_query,
) -> Iterator[Block]:
    """Read an input in blocks, and check its queries.

    Args:
        where: Name of the input and of its rows, for error messages.
        column: The column with the queries.
        columns: The columns that pass into the output; None means all fields of each row.
        mark_bad_rows: Whether a wrong query, or a line that is no row, becomes an error of its row.
        check: Returns a query as a predictor answers it, and refuses a wrong one with a QueryError.

    Raises:
        InputError: After the rows before a wrong one.
    """
    first, absent = 0, set(columns or ())
    for group, numbers, problems in rows.groups([column, *(columns or ())]):
        records = group if isinstance(group, list) else [{column: value} for value in group.column(column).to_pylist()]
        queries, errors, stop = list[Any](), list[str | None](), None
        for record, problem in zip(records, problems, strict=True):
            query, error = (None, problem) if problem else _checked(record, column, check)
            if error and not mark_bad_rows:
                stop = problem or f"{error} (column {column})"
            elif columns is None and (taken := record.keys() & set(ANSWER_FIELDS)):
                stop = f"the answer has a field {taken.pop()} of its own; name the fields to keep with --columns"
            if stop:
                break
            queries.append(query)
            errors.append(error)
            absent -= record.keys()
        good = len(errors)
        if good:
            yield Block(first, queries, errors, _select(group[:good], columns), numbers[:good])
        if stop:
            raise InputError(f"{where} {numbers[good]}: {stop}")
        first += good
    if rows.columns is None and first and absent:
        print_status(f"--columns: no row has the field {', '.join(sorted(absent))}")


def _checked(record: dict[str, Any], column: str, check: Callable[[object], Any]) -> tuple[Any, str | None]:
    """The query of a row, or what is wrong with it."""
    if column not in record:
        flag = "--text-column" if check is check_query else "--vector-column"
        return None, f"expected the field {column}, found {', '.join(record) or 'no field'}; use {flag}"
    try:
        return check(record[column]), None
    except QueryError as error:
        return None, str(error)


def _select(group: Any, columns: list[str] | None) -> Any:
    if columns is None:
        return group
    if isinstance(group, list):
        return [{name: row.get(name) for name in columns} for row in group]
    return group.select(columns)
