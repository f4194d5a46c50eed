"""The work on a block in a worker process or a task of Ray: answer its texts, and make the bytes of the output.

The modules of the model are imported after the libraries' threads are limited.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from recollect.service.bulk.reading import ANSWER_COLUMNS, Block
from recollect.service.threads import ThreadBudget

if TYPE_CHECKING:
    from recollect.service.model import Model

# Keys that are searched and ranked together. With the 16,384 of the service, which must not block for long, the
# multiplications are smaller, and the search of a flat index takes a third longer.
_BLOCK_KEYS = 65_536
# Compression of gzip: twice as fast as the default, and a few percent larger.
_GZIP_LEVEL = 4


@dataclass(frozen=True)
class Task:
    """All that a worker must know to turn blocks of rows into output.

    `options` are the keywords of `Model.answer`, without those that nobody chose: a job that is not finished goes on
    after an update that adds an option. `columns` are the columns that pass into the output; None means all fields of
    each JSON line.
    """

    store: str
    version: str
    verify_key: str | None
    bundle_cache: str | None
    options: dict[str, Any]
    input_format: str
    output_format: str
    output_gzip: bool
    text_column: str
    columns: list[str] | None

    def to_json(self) -> bytes:
        return json.dumps(vars(self)).encode()

    def facts(self) -> dict[str, Any]:
        """All that decides the content of the output, by the name of its flag."""
        names = ("version", "input_format", "output_format", "output_gzip", "text_column", "columns")
        return {name: getattr(self, name) for name in names} | self.options


class Answered(NamedTuple):
    """The output of a block: its bytes, and the number of input rows up to its end."""

    content: bytes
    rows: int


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
    """Answer a block of a task."""
    read, model = _opened(task)
    texts = [text for text, error in zip(block.texts, block.errors, strict=True) if error is None]
    found = iter(model.predictor.predict(texts, model.resolve(**read.options)).answers if texts else ())
    answers = [next(found).to_dict() if error is None else {"labels": [], "error": error} for error in block.errors]
    return Answered(encode(block.kept, answers, read), block.first + len(block.texts))


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
        return encode_batch(kept, answers, "explain" in task.options)
    if not isinstance(kept, list):
        from recollect.service.bulk.parquet import rows_of

        kept = rows_of(kept, exact_decimals=task.output_format == "csv")
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
    """A value of a column as text: its JSON, if it is no text yet. JSON that is a string is the text in it."""
    if value is None or isinstance(value, str):
        return value
    text = to_json(value, inf_nan_mode="constants").decode()
    return json.loads(text) if text.startswith('"') else text


def _compressed(content: bytes, task: Task) -> bytes:
    """Content as a part of a gzip file, if the output is one. Such parts can be joined and decompressed together."""
    return gzip.compress(content, _GZIP_LEVEL, mtime=0) if task.output_gzip else content
