"""Writing rows with their answers: the bytes of a block in the format of the output."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from recollect.service.bulk.rows import ANSWER_COLUMNS, Rows, as_text
from recollect.service.bulk.task import Task
from recollect.service.predictor.answers import Answer

# Compression of gzip: twice as fast as the default, and a few percent larger.
_GZIP_LEVEL = 4


def header(task: Task, empty: Any) -> bytes:
    """The bytes before the first block; `empty` is the input's attribute of this name."""
    columns = task.columns or []
    if task.output_format == "parquet":
        return encode(Rows([], [], {}, batch=None if empty is None else empty.select(columns)), [], task)
    return _compressed(_csv([[*columns, *ANSWER_COLUMNS]]), task) if task.output_format == "csv" else b""


def encode(rows: Rows, answers: Sequence[Answer | None], task: Task) -> bytes:
    """The bytes of rows and their answers; a row with an error has no answer."""
    if task.output_format == "parquet":
        from recollect.service.bulk.parquet_output import encode_batch

        return encode_batch(rows, answers, task)
    if rows.batch is not None:
        from recollect.service.bulk.parquet_input import rows_of

        rows.kept = rows_of(rows.batch)
    if task.output_format == "csv":
        return _compressed(_csv(_csv_rows(rows, answers)), task)
    return _compressed(b"".join(_json_lines(rows, answers)), task)


def _json_lines(rows: Rows, answers: Sequence[Answer | None]) -> Iterator[bytes]:
    for number, (kept, answer) in enumerate(zip(rows.kept, answers, strict=True)):
        fields = {"labels": [], "error": rows.errors[number]} if answer is None else answer.to_dict()
        row = kept | fields
        try:
            yield to_json(row, inf_nan_mode="constants") + b"\n"
        except PydanticSerializationError:  # half of a surrogate pair in the input, which only an escape can express
            yield json.dumps(row).encode() + b"\n"


def _csv_rows(rows: Rows, answers: Sequence[Answer | None]) -> Iterator[list[str | None]]:
    for number, (kept, answer) in enumerate(zip(rows.kept, answers, strict=True)):
        fields = {} if answer is None else answer.to_dict()
        yield [
            *map(as_text, kept.values()),
            to_json(fields.get("labels", [])).decode(),
            as_text(fields.get("truncated", False)),
            as_text(fields.get("exhausted", False)),
            rows.errors.get(number),
        ]


def _csv(rows: Iterator[list[str | None]] | list[list[str]]) -> bytes:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue().encode(errors="replace")


def _compressed(content: bytes, task: Task) -> bytes:
    """Content as a part of a gzip file, if the output is one. Such parts can be joined and decompressed together."""
    return gzip.compress(content, _GZIP_LEVEL, mtime=0) if task.output_gzip else content
