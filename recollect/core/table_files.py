"""Tables: files of CSV, TSV, JSON lines or Parquet, and data frames. Each row has a text and labels.

    title,description,categories
    Red chair,For the garden,chairs|garden

Columns of a row form its text. One column has its label, several labels with a separator, or a list.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from recollect.core.bundle.label_fields import checked_fields
from recollect.core.errors import InputError, RecollectError
from recollect.core.settings import TableSettings, as_flag
from recollect.core.table_guesses import example_flags
from recollect.core.text_lines import read_csv, read_lines, read_objects
from recollect.core.texts import CONTROL_CHARACTERS, is_blank, require_unicode

# The values of a row, by column, and its place for messages.
Row = tuple[str, dict[str, Any]]

# The layout of a dataset that is a table, as a manifest names it.
TABLE = "table"
SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def kind_of(path: Path) -> str | None:
    """The kind of a table by the suffix of its file: csv, tsv, jsonl or parquet; None if it is no table."""
    name = path.name.lower()
    kind = SUFFIXES.get(Path(name.removesuffix(".gz")).suffix)
    return None if kind == "parquet" and name.endswith(".gz") else kind


@dataclass(frozen=True)
class Table:
    """An open table.

    Attributes:
        name: Its name in messages.
        columns: The names of its columns; of JSON lines, those of the records before the wanted ones were found.
        read: Reads the given columns of all rows. A record of JSON lines may lack some.
    """

    name: str
    columns: list[str]
    read: Callable[[Sequence[str]], Iterator[Row]]


def open_table(path: Path, wanted: Sequence[str], error: type[RecollectError] = InputError) -> Table:
    """Open a file as a table.

    Args:
        wanted: Columns that the caller needs. JSON lines are read until all of them are found.

    Raises:
        RecollectError: If the suffix is unknown, or the file is not of its kind, or has no columns.
        OSError: If the file does not open.
    """
    kind = kind_of(path)
    if kind is None:
        raise error(
            f"{path}: expected a table that ends in {', '.join(SUFFIXES)} (each but Parquet also .gz), found "
            f"{path.suffix or 'no suffix'}; save it as CSV"
        )
    if kind == "parquet":
        return _open_parquet(path, error)
    if kind == "jsonl":
        return _open_objects(path, wanted, error)
    delimiter = "\t" if kind == "tsv" else None

    def parse() -> tuple[list[str], Iterator[dict[str, str]]]:
        lines = read_lines(path, error, keep_ends=True)
        return read_csv((line for _, line in lines), str(path), error, delimiter)

    def read(_: Sequence[str]) -> Iterator[Row]:
        for number, row in enumerate(parse()[1], start=1):
            yield f"{path}: row {number}", row

    columns = parse()[0]
    if len(columns) == 1 and any(each in columns[0] for each in ",;\t"):
        raise error(
            f"{path}: expected columns between {delimiter or ','!r}, found one column {columns[0][:60]!r}; save it "
            "with commas as .csv, or with tabs as .tsv"
        )
    return Table(str(path), columns, read)


def _open_objects(path: Path, wanted: Sequence[str], error: type[RecollectError]) -> Table:
    found = dict[str, None]()
    for _, record in read_objects(path, error, unique=True):
        found |= dict.fromkeys(record)
        if {*wanted} <= found.keys():
            break
    if not found:
        raise error(f"{path}: expected JSON objects, found an empty file")

    def read(_: Sequence[str]) -> Iterator[Row]:
        return ((f"{path}:{number}", record) for number, record in read_objects(path, error, unique=True))

    return Table(str(path), [*found], read)


def _open_parquet(path: Path, error: type[RecollectError]) -> Table:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise error(
            f"{path}: expected pyarrow, which reads Parquet, found no such package; pip install "
            "'recollect-xmc[parquet]', or save the table as CSV"
        ) from None

    @contextlib.contextmanager
    def explained() -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as wrong:
            reason = getattr(wrong, "strerror", None) or str(wrong).splitlines()[0]
            raise error(f"{path}: expected Parquet, found: {reason}") from None

    def read(columns: Sequence[str]) -> Iterator[Row]:
        rows = itertools.count(1)
        with explained(), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[*columns]):
                for row in batch.to_pylist():
                    yield f"{path}: row {next(rows)}", row

    with explained(), pq.ParquetFile(path) as file:
        return Table(str(path), _different(file.schema_arrow.names, str(path), error), read)


def open_frame(frame: Any, name: str, error: type[RecollectError] = InputError) -> Table:
    """Open a data frame of pandas or polars, or another object with Arrow's interface of streams, as a table.

    Raises:
        RecollectError: If Arrow cannot read it.
    """
    import pyarrow as pa

    try:
        if hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        elif hasattr(frame, "to_arrow"):  # polars before its version 1.3
            table = frame.to_arrow()
        elif hasattr(frame, "iloc"):  # pandas before its version 2.2
            table = pa.Table.from_pandas(frame, preserve_index=False)
        else:
            raise error(
                f"expected a path, or a data frame of pandas, polars or Arrow, found {type(frame).__name__}; make one"
            )
    except (pa.ArrowException, ValueError, TypeError) as wrong:
        raise error(f"{name}: expected columns that Arrow can hold, found: {str(wrong).splitlines()[0]}") from None

    def read(columns: Sequence[str]) -> Iterator[Row]:
        rows = itertools.count(1)
        for batch in table.select(columns).to_batches():
            for row in batch.to_pylist():
                yield f"{name}: row {next(rows)}", row

    return Table(name, _different(table.column_names, name, error), read)


def _different(columns: Sequence[str], name: str, error: type[RecollectError]) -> list[str]:
    if len({*columns}) < len(columns) or not columns:
        found = ", ".join(columns) or "no column"
        raise error(f"{name}: expected different names of columns, found {found}; rename them")
    return [*columns]


class LabelledText(NamedTuple):
    """A row of a table: its place, its uid (None without a column of uids), its text and its labels."""

    where: str
    uid: str | None
    text: str
    labels: list[str]


@dataclass(frozen=True)
class TextColumns:
    """The columns of a table that have the texts and their labels.

    Attributes:
        texts: The columns that form a text, in this order.
        label: The column of the labels.
        separator: The text between several labels of a row; None: a row has one label, or a list.
        uid: The column of the uids of the texts. Rows with the same uid are one text.
    """

    texts: Sequence[str]
    label: str
    separator: str | None = None
    uid: str | None = None

    @classmethod
    def of(
        cls, settings: TableSettings, table: Table, command: Sequence[str], error: type[RecollectError]
    ) -> TextColumns:
        """The columns that settings name. The message for a wrong one shows those of the table, and a command.

        Args:
            command: The words of the command that reads the table; empty in Python.

        Raises:
            RecollectError: If a flag is missing, or names no column, or two flags name the same column.
        """
        texts, label, uid = settings.text_columns, settings.label_column, settings.id_column
        columns = ", ".join(table.columns)
        if missing := [name for name in ("text_columns", "label_column") if not getattr(settings, name)]:
            raise error(
                f"{table.name}: expected {' and '.join(map(as_flag, missing))}, found the columns {columns}; "
                f"{settings.example(example_flags(table.columns, table.read), command)}"
            )
        assert label is not None
        named = {"text_columns": texts, "label_column": [label], "id_column": [] if uid is None else [uid]}
        if absent := {name: found for name, given in named.items() if (found := [*{*given} - {*table.columns}])}:
            name, found = next(iter(absent.items()))
            right = settings.model_copy(update=dict.fromkeys(absent))
            raise error(
                f"{table.name}: {as_flag(name)}: expected a column named {' and one named '.join(found)}, found the "
                f"columns {columns}; "
                f"{right.example(example_flags(table.columns, table.read), command)}"
            )
        for name in ("label_column", "id_column"):
            if {*named[name]} & {*texts}:
                raise error(
                    f"{table.name}: {as_flag(name)}: expected a column that is no part of the text, found "
                    f"{named[name][0]} also in --text-columns; omit it there"
                )
        if len({*texts}) < len(texts):
            raise error(f"{table.name}: --text-columns: expected each column once, found {','.join(texts)}; omit one")
        return cls(texts, label, settings.label_separator, uid)

    @property
    def wanted(self) -> list[str]:
        return [*self.texts, self.label, *([] if self.uid is None else [self.uid])]

    def read(self, table: Table, error: type[RecollectError]) -> Iterator[LabelledText]:
        """Yield the rows of a table. Texts may be empty, and rows may have no labels.

        Raises:
            RecollectError: If a value is no text.
        """
        for where, row in table.read(self.wanted):
            parts = (text_of(row.get(name), f"{where}: {name}", error) for name in self.texts)
            uid = None if self.uid is None else uid_of(row.get(self.uid), f"{where}: {self.uid}", error)
            text = " ".join(part for part in parts if not is_blank(part))
            labels = items_of(row.get(self.label), self.separator, f"{where}: {self.label}", error)
            yield LabelledText(where, uid, text, [uid_of(each, f"{where}: {self.label}", error) for each in labels])


def text_of(value: Any, where: str, error: type[RecollectError]) -> str:
    """A value as a text: a number as its digits, and null as an empty text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | tuple | dict | bytes):
        raise error(f"{where}: expected a text, found {type(value).__name__}")
    if isinstance(value, float) and value.is_integer():  # pandas holds integers beside missing values as floats
        value = int(value)
    return str(value)


def uid_of(value: Any, where: str, error: type[RecollectError]) -> str:
    """A value as a uid, without white space at its ends."""
    uid = text_of(value, where, error).strip()
    if is_blank(uid):
        raise error(f"{where}: expected a value, found none; add one, or remove the row")
    try:
        require_unicode(uid, "value")
    except ValueError as wrong:
        raise error(f"{where}: {wrong}") from None
    if found := re.search(CONTROL_CHARACTERS, uid):
        raise error(f"{where}: expected no control characters, found {found[0]!r} in {uid[:60]!r}; remove it")
    return uid


def items_of(value: Any, separator: str | None, where: str, error: type[RecollectError]) -> list[str]:
    """The different items of a value that is a list, or a text with a separator. Empty items are left out."""
    if isinstance(value, list | tuple):
        items = [text_of(each, where, error) for each in value]
    else:
        text = text_of(value, where, error)
        items = [text] if separator is None else text.split(separator)
    return [*dict.fromkeys(item.strip() for item in items if not is_blank(item))]


class LabelRow(NamedTuple):
    """A row of a table of labels. The text may be empty."""

    where: str
    uid: str
    text: str
    fields: dict[str, Any]


def are_label_columns(columns: Iterable[str], known: Set[str]) -> bool:
    """Whether a row with these columns is a label: it has a uid, a text, and else only fields that labels have."""
    names = {*columns}
    return names >= {"uid", "text"} and all(
        name in known or name.startswith("name:") for name in names - {"uid", "text"}
    )


def read_label_rows(table: Table, separator: str | None, error: type[RecollectError]) -> Iterator[LabelRow]:
    """Yield the rows of a table of labels, with the columns `uid` and `text`; each further column is a field.

    `parents` and `groups` are lists, or texts with the separator. A column such as `name:fi` has the names in a
    language.

    Raises:
        RecollectError: If the table lacks a column, or a value is wrong.
    """
    if missing := {"uid", "text"} - {*table.columns}:
        raise error(
            f"{table.name}: --labels: expected the columns uid and text, found {', '.join(table.columns)}; add "
            f"{' and '.join(sorted(missing))}"
        )
    for where, row in table.read(table.columns):
        uid, text = (row.get(name) for name in ("uid", "text"))
        fields = dict[str, Any]()
        for name, value in row.items():
            is_missing = value is None or (isinstance(value, float) and math.isnan(value))
            if name in ("uid", "text") or is_missing or (isinstance(value, str) and is_blank(value)):
                continue
            prefix, _, language = name.partition(":")
            if prefix == "name" and language:
                fields.setdefault("names", {})[language.strip()] = text_of(value, f"{where}: {name}", error).strip()
            elif name in ("parents", "groups"):
                fields[name] = items_of(value, separator, f"{where}: {name}", error)
            elif name in ("name", "notation"):
                fields[name] = text_of(value, f"{where}: {name}", error).strip()
            else:
                fields[name] = value
        try:
            fields = checked_fields(fields)
        except ValueError as wrong:
            raise error(f"{where}: {wrong}") from None
        yield LabelRow(where, uid_of(uid, f"{where}: uid", error), text_of(text, f"{where}: text", error), fields)
