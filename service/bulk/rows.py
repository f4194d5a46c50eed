"""Rows of a block, as a worker parses them: their texts, and the columns that pass into the output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from recollect.service.bulk.task import Task
from recollect.service.errors import QueryError
from recollect.service.options import check_query

# The fields of the answer in the output. No column that passes into the output may have one of these names.
ANSWER_COLUMNS = ("labels", "truncated", "exhausted", "error")


@dataclass
class Rows:
    """The rows of a block.

    Attributes:
        texts: The text of each row; a text that cannot be answered has an error instead.
        kept: For each row, the columns that pass into the output.
        errors: The reasons why texts cannot be answered, by the number of the row in the block.
        stop: Error of the row after the last one, which ends the task; None if there is none.
        batch: The columns that pass into the output as an Arrow record batch, if the input is a Parquet file.
    """

    texts: list[str]
    kept: list[dict[str, Any]]
    errors: dict[int, str]
    stop: str | None = None
    batch: Any = None

    @classmethod
    def parse(cls, payload: bytes, first: int, task: Task) -> Rows:
        """Parse the payload of a block, and check its texts.

        Args:
            payload: The payload, which a reader of the task's input format has made.
            first: Number of rows before the block.
            task: Formats, columns, and the treatment of bad rows.
        """
        batch = None
        if task.input_format == "parquet":
            from recollect.service.bulk.parquet_input import parse_stream

            texts, batch = parse_stream(payload, task.text_column, task.columns or ())
            found: Iterator[tuple[Any, dict[str, Any]]] = ((text, {}) for text in texts)
        elif task.input_format == "csv":
            found = _csv_rows(payload, task)
        else:
            found = _text_rows(payload) if task.input_format == "text" else _json_rows(payload, task)
        rows = cls([], [], {})
        noun = "line" if task.input_format in ("text", "jsonl") else "row"
        try:
            for text, kept in found:
                try:
                    rows.texts.append(check_query(text))
                except QueryError as error:
                    if not task.mark_bad_rows:
                        raise _RowError(f"{error} (column {task.text_column})") from None
                    rows.errors[len(rows.texts)] = str(error)
                    rows.texts.append("")
                rows.kept.append(kept)
        except _RowError as error:
            rows.stop = f"{task.input_name}: {noun} {first + len(rows.texts) + 1}: {error}"
        rows.batch = None if batch is None else batch.slice(0, len(rows.texts))
        return rows


def as_text(value: Any) -> str | None:
    """A value of a column as text: its JSON, if it is no text yet."""
    return value if value is None or isinstance(value, str) else to_json(value, inf_nan_mode="constants").decode()


class _RowError(Exception):
    """A row that ends the task."""


def _text_rows(payload: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in payload.split(b"\n"):
        try:
            text = line.decode("utf-8-sig").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise _RowError(f"expected UTF-8, found {error}") from None
        yield text, {"text": text}


def _json_rows(payload: bytes, task: Task) -> Iterator[tuple[Any, dict[str, Any]]]:
    for line in payload.split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _RowError(f"expected a JSON object, found {line[:40]!r} ({error})") from None
        except RecursionError:
            raise _RowError("expected a JSON object, found one that is nested too deeply") from None
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


def _csv_rows(payload: bytes, task: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    header, *rows = json.loads(payload)
    for values in rows:
        row = dict(zip(header, values, strict=True))
        yield row[task.text_column], {name: row[name] for name in task.columns or ()}
