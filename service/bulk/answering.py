"""The work on a block in a worker process or a task of Ray: parse its rows, answer them, and write the output's bytes.

The modules of the model are imported after the libraries' threads are limited.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from recollect.service.bulk.reading import Block
from recollect.service.errors import QueryError
from recollect.service.options import check_query
from recollect.service.threads import ThreadBudget

if TYPE_CHECKING:
    from recollect.service.model import Model

# The fields of the answer in the output. No column that passes into the output may have one of these names.
ANSWER_COLUMNS = ("labels", "truncated", "exhausted", "error")
# Keys that are searched and ranked together. With the 16,384 of the service, which must not block for long, the
# multiplications are smaller, and the search of a flat index takes a third longer.
_BLOCK_KEYS = 65_536
# Compression of gzip: twice as fast as the default, and a few percent larger.
_GZIP_LEVEL = 4


@dataclass(frozen=True)
class Task:
    """All that a worker must know to turn blocks of rows into output.

    `options` are the chosen keywords of `Model.answer`. `columns` are the columns that pass into the output; None means
    all fields of each JSON line. With `mark_bad_rows`, a row without a usable text gets an error in the output, and
    does not stop the task.
    """

    store: str
    version: str
    verify_key: str | None
    bundle_cache: str | None
    options: dict[str, Any]
    input_name: str
    input_format: str
    output_format: str
    output_gzip: bool
    text_column: str
    columns: list[str] | None
    mark_bad_rows: bool

    def to_json(self) -> bytes:
        return json.dumps(vars(self)).encode()

    def facts(self) -> dict[str, Any]:
        """All that decides the content of the output, by the name of its flag."""
        names = ("version", "input_format", "output_format", "output_gzip", "text_column", "columns")
        return {name: getattr(self, name) for name in names} | self.options


class Answered(NamedTuple):
    """The output of a block: its bytes, the number of input rows up to its end, and the error of the row after it."""

    content: bytes
    rows: int
    error: str | None


def open_version(task: bytes) -> list[str]:
    """Open the version of a task, given as JSON, and check its options. The version stays open for `answer`.

    Returns:
        Messages for the user.

    Raises:
        ServiceError: If the version does not open, or an option needs probabilities that it does not give.
    """
    from recollect.service.predictor.filters import describe_unknown

    read, model = _opened(task)
    return list(describe_unknown(model.resolve(**read.options), model.predictor.memory.labels))


def answer(task: bytes, block: Block) -> Answered:
    """Answer a block of a task, up to a row that stops the task."""
    read, model = _opened(task)
    texts, answers, kept, stop = list[str](), list[dict[str, Any]](), list[dict[str, Any]](), None
    try:
        for text, fields in _PARSERS[read.input_format](block.rows, read):
            bad = {}
            try:
                texts.append(check_query(text))
            except QueryError as error:
                if not read.mark_bad_rows:
                    raise _RowError(f"{error} (column {read.text_column})") from None
                bad = {"labels": [], "error": str(error)}
            kept.append(fields)
            answers.append(bad)
    except _RowError as error:
        noun = "line" if read.input_format in ("text", "jsonl") else "row"
        stop = f"{read.input_name}: {noun} {block.first + len(answers) + 1}: {error}"
    found = iter(model.predictor.predict(texts, model.resolve(**read.options)).answers if texts else ())
    answers = [bad or next(found).to_dict() for bad in answers]
    if read.input_format == "parquet":
        kept = block.rows.select(read.columns)[: len(answers)]
    return Answered(encode(kept, answers, read), block.first + len(answers), stop)


@functools.lru_cache(maxsize=1)
def _opened(task: bytes) -> tuple[Task, Model]:
    ThreadBudget.of(workers=1, threads=1).apply()
    from recollect.service.model import open_model

    read = Task(**json.loads(task))
    verify_key, bundle_cache = (Path(path) if path else None for path in (read.verify_key, read.bundle_cache))
    model = open_model(read.store, read.version, verify_key, bundle_cache)
    model.resolve(**read.options)
    model.predictor.block_keys = _BLOCK_KEYS
    return read, model


# ---- Parsing ----


class _RowError(Exception):
    """A row that stops the task."""


# The text of each row, and its fields that pass into the output. Those of a Parquet file stay in the record batch.
_Parsed = Iterator[tuple[Any, dict[str, Any]]]


def _parse_texts(lines: list[bytes], task: Task) -> _Parsed:
    for line in lines:
        try:
            text = line.decode("utf-8-sig").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise _RowError(f"expected UTF-8, found {error}") from None
        yield text, {"text": text}


def _parse_json(lines: list[bytes], task: Task) -> _Parsed:
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _RowError(f"expected a JSON object, found {line[:40]!r} ({error})") from None
        if not isinstance(row, dict):
            raise _RowError(f"expected a JSON object, found {line[:40]!r}")
        if task.text_column not in row:
            raise _RowError(
                f"expected the field {task.text_column}, found {', '.join(row) or 'no field'}; use --text-column"
            )
        kept = row if task.columns is None else {name: row.get(name) for name in task.columns}
        if taken := kept.keys() & set(ANSWER_COLUMNS):
            raise _RowError(f"the answer has a field {taken.pop()} of its own; name the fields to keep with --columns")
        yield row[task.text_column], kept


def _parse_csv(rows: list[dict[str, str]], task: Task) -> _Parsed:
    for row in rows:
        yield row[task.text_column], {name: row[name] for name in task.columns or ()}


def _parse_batch(batch: Any, task: Task) -> _Parsed:
    for text in batch.column(task.text_column).to_pylist():
        yield text, {}


_PARSERS: dict[str, Callable[[Any, Task], _Parsed]] = {
    "text": _parse_texts,
    "jsonl": _parse_json,
    "csv": _parse_csv,
    "parquet": _parse_batch,
}

# ---- Writing ----


def header(task: Task, empty: Any) -> bytes:
    """The bytes before the first block; `empty` is the input's attribute of this name."""
    if task.output_format == "parquet":
        return encode([] if empty is None else empty.select(task.columns or []), [], task)
    names = [*(task.columns or []), *ANSWER_COLUMNS]
    return _compressed(_csv([names]), task) if task.output_format == "csv" else b""


def encode(kept: Any, answers: Sequence[dict[str, Any]], task: Task) -> bytes:
    """The bytes of rows in the format of the output.

    Args:
        kept: The columns of the input that pass into the output: a dict for each row, or an Arrow record batch.
        answers: The fields of the answer to each row.
        task: Formats and columns.
    """
    if task.output_format == "parquet":
        from recollect.service.bulk.parquet import encode_batch

        if isinstance(kept, list):
            kept = {name: [_as_text(row[name]) for row in kept] for name in task.columns or ()}
        return encode_batch(kept, answers, task.options["explain"])
    if not isinstance(kept, list):
        from recollect.service.bulk.parquet import rows_of

        kept = rows_of(kept)
    rows = zip(kept, answers, strict=True)
    content = _csv(map(_csv_row, rows)) if task.output_format == "csv" else b"".join(map(_json_line, rows))
    return _compressed(content, task)


def _json_line(row: tuple[dict[str, Any], dict[str, Any]]) -> bytes:
    kept, answer = row
    fields = kept | answer
    try:
        return to_json(fields, inf_nan_mode="constants") + b"\n"
    except PydanticSerializationError:  # half of a surrogate pair in the input, which only an escape can express
        return json.dumps(fields).encode() + b"\n"


def _csv_row(row: tuple[dict[str, Any], dict[str, Any]]) -> list[str | None]:
    kept, answer = row
    fields = {"truncated": False, "exhausted": False, "error": None} | answer
    return [*map(_as_text, kept.values()), *(_as_text(fields[name]) for name in ANSWER_COLUMNS)]


def _csv(rows: Any) -> bytes:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue().encode(errors="replace")


def _as_text(value: Any) -> str | None:
    """A value of a column as text: its JSON, if it is no text yet."""
    return value if value is None or isinstance(value, str) else to_json(value, inf_nan_mode="constants").decode()


def _compressed(content: bytes, task: Task) -> bytes:
    """Content as a part of a gzip file, if the output is one. Such parts can be joined and decompressed together."""
    return gzip.compress(content, _GZIP_LEVEL, mtime=0) if task.output_gzip else content
