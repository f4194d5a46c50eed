"""The work on a block in a worker process or a task of Ray: answer its queries, and make the bytes of the output.

The modules of the model are imported after the libraries' threads are limited.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from recollect.bulk.reading import ANSWER_COLUMNS, Block
from recollect.core import extras
from recollect.core.errors import InputError, MemoryLogError, QueryError
from recollect.core.system.threads import ThreadBudget

if TYPE_CHECKING:
    from recollect.edits.log import MemoryLog
    from recollect.model import Model

# Keys that are searched and ranked together. With the 16,384 of the service, which must not block for long, the
# multiplications are smaller, and the search of a flat index takes a third longer.
_BLOCK_KEYS = 65_536
# Characters at which a reader of CSV ends a value or a row (RFC 4180 and the ends of lines of Unicode), and the quote.
_QUOTED_IN_CSV = re.compile('[,"\r\n\v\f\x1c-\x1e\x85\u2028\u2029]')
# Compression of gzip: twice as fast as the default, and a few percent larger.
_GZIP_LEVEL = 4


@dataclass(frozen=True)
class Task:
    """All that a worker must know to turn blocks of rows into output.

    `options` are the keywords of `Model.answer`, without those that nobody chose: a job that is not finished goes on
    after an update that adds an option. `columns` are the columns that pass into the output; None means all fields of
    each JSON line. `sequence` is the number of the last live entry with which all workers answer; 0 means the memory of
    the bundle alone. `vector_column` is the column with the queries if they are vectors. `where` is the name of the
    input and of its rows, for messages. With `mark_bad_rows`, a query that is refused becomes an error of its row.
    """

    store: str
    version: str
    sequence: int
    verify_key: str | None
    bundle_cache: str | None
    options: dict[str, Any]
    input_format: str
    output_format: str
    output_gzip: bool
    text_column: str
    columns: list[str] | None
    where: str
    mark_bad_rows: bool
    vector_column: str | None = None

    @property
    def column(self) -> str:
        """The column with the queries."""
        return self.vector_column or self.text_column

    def to_json(self) -> bytes:
        return json.dumps(vars(self)).encode()

    def facts(self) -> dict[str, Any]:
        """All that decides the content of the output, by the name of its flag, except the live entries."""
        names = ("version", "input_format", "output_format", "output_gzip", "text_column", "columns")
        own = {} if self.vector_column is None else {"vector_column": self.vector_column}
        return {name: getattr(self, name) for name in names} | own | self.options


class Answered(NamedTuple):
    """The output of a block: its bytes, and the number of input rows up to its end."""

    content: bytes
    rows: int


def open_version(task: bytes) -> list[str]:
    """Open the version of a task, given as JSON, and check its options. Return messages for the user.

    The version stays open for `answer`.

    Raises:
        ServiceError: If the version does not open, or an option needs probabilities that it does not give, or the log
            lacks live entries of the task.
    """
    from recollect.core.search.filters import describe_unknown
    from recollect.core.vectors import require_without_words, without_words

    read, model = _opened(task)
    memory, options = model.predictor.memory, model.resolve(**read.options)
    memory.filters.of(options)  # a wrong filter fails here, before the first row
    messages = list(describe_unknown(options, memory.labels))
    if read.vector_column is not None:
        require_without_words(model.manifest, options, read.options)
        if without_words(model.manifest, options) is not options:
            messages.append("--vector-column: vectors have no words, so words have no votes, and no ranker is used")
    return messages


def answer(task: bytes, block: Block) -> Answered:
    read, model = _opened(task)
    rows = zip(block.queries, block.numbers, block.errors, strict=True)
    good = [(query, number) for query, number, error in rows if error is None]
    predicted = iter(_answers(good, read, model))
    answers = [next(predicted) if error is None else _error(error) for error in block.errors]
    return Answered(encode(block.kept, answers, read), block.first + len(block.queries))


def _answers(rows: Sequence[tuple[Any, int]], task: Task, model: Model) -> list[dict[str, Any]]:
    """The fields of the answers to queries, each with the number of its row.

    If a query is refused, for example by a server of vectors, those of each half, to find it.

    Raises:
        InputError: If a query is refused, and the task does not mark bad rows.
    """
    if not rows:
        return []
    try:
        found = model.predictor.predict([query for query, _ in rows], model.resolve(**task.options)).answers
        return [each.to_dict() for each in found]
    except QueryError as error:
        if len(rows) == 1 and task.mark_bad_rows:
            return [_error(str(error))]
        if len(rows) == 1:
            raise InputError(f"{task.where} {rows[0][1]}: {error} (column {task.column})") from None
    half = len(rows) // 2
    return _answers(rows[:half], task, model) + _answers(rows[half:], task, model)


def _error(problem: str) -> dict[str, Any]:
    return {"labels": [], "error": _as_text(problem)}


@functools.lru_cache(maxsize=1)
def _opened(task: bytes) -> tuple[Task, Model]:
    ThreadBudget.of(workers=1, threads=1).apply()
    from recollect.edits.log import MemoryLog
    from recollect.model import open_model
    from recollect.store.store import Store

    read = Task(**json.loads(task))
    verify_key, bundle_cache = (Path(path) if path else None for path in (read.verify_key, read.bundle_cache))
    model = open_model(read.store, read.version, verify_key, bundle_cache, live="off")
    model.resolve(**read.options)
    model.predictor.block_keys = _BLOCK_KEYS
    if read.sequence > model.sequence:
        log = MemoryLog.of(Store(read.store), model.manifest, model.predictor.encode)
        _apply_live_entries(model, log, read.sequence)
    return read, model


def _apply_live_entries(model: Model, log: MemoryLog, last: int) -> None:
    """Give a model the live entries up to a number, and no later ones."""
    for commits in log.news():
        model.predictor.apply([entry for commit in commits for entry in commit.entries if entry.sequence <= last])
        if model.sequence == last:
            return
    raise MemoryLogError(
        f"{log.name}: expected the live entries up to {last:,}, with which the task was started, found those up to "
        f"{log.sequence:,}; restore the log, or start again with --overwrite"
    )


def header(task: Task, empty: Any) -> bytes:
    """The bytes before the first block; `empty` is the input's attribute of this name."""
    if task.output_format == "parquet":
        return encode([] if empty is None else empty.select(task.columns or []), [], task)
    names = map(_as_text, [*(task.columns or []), *ANSWER_COLUMNS])
    return _compressed(_csv([names]), task) if task.output_format == "csv" else b""


def encode(kept: Any, answers: Sequence[dict[str, Any]], task: Task) -> bytes:
    """The bytes of rows in the format of the output, from `kept` of a `Block`, and the fields of the answers."""
    if task.output_format == "parquet":
        if isinstance(kept, list):
            kept = {name: [_as_text(row[name]) for row in kept] for name in task.columns or ()}
        parquet = extras.load("bulk format", "parquet")
        explain, fields = "explain" in task.options, task.options.get("fields", ())
        return bytes(parquet.encode_batch(kept, answers, explain, fields))
    if not isinstance(kept, list):
        kept = extras.load("bulk format", "parquet").rows_of(kept, exact_decimals=task.output_format == "csv")
    if task.output_format == "csv":
        content = _csv(map(_csv_row, kept, answers))
    else:
        content = b"".join(_json(row | answer) + b"\n" for row, answer in zip(kept, answers, strict=True))
    return _compressed(content, task)


def _csv_row(kept: dict[str, Any], answer: dict[str, Any]) -> list[str | None]:
    fields = {"truncated": False, "exhausted": False, "error": None} | answer
    return [*map(_as_text, kept.values()), *(_as_text(fields[name]) for name in ANSWER_COLUMNS)]


def _csv(rows: Iterable[Iterable[str | None]]) -> bytes:
    return "".join(",".join(map(_csv_value, row)) + "\n" for row in rows).encode()


def _csv_value(text: str | None) -> str:
    if text is None:
        return ""
    return '"' + text.replace('"', '""') + '"' if _QUOTED_IN_CSV.search(text) else text


def _as_text(value: Any) -> str | None:
    """A value of a column as text: its JSON, if it is no text yet. JSON that is a string is the text in it, and
    null is None.

    Half of a surrogate pair, which no encoding of text has, becomes a question mark.
    """
    text = value if isinstance(value, str) else _json(value).decode()
    if text is not value and (text == "null" or text.startswith('"')):
        text = json.loads(text)
    return None if text is None else text.encode(errors="replace").decode()


def _json(value: Any) -> bytes:
    """A value as JSON in UTF-8. Numbers that JSON has not (NaN and the infinite ones) become null."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:  # half of a surrogate pair in the input, which only an escape can express
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None)).encode()


def _compressed(content: bytes, task: Task) -> bytes:
    """Content as a part of a gzip file, if the output is one. Such parts can be joined and decompressed together."""
    return gzip.compress(content, _GZIP_LEVEL, mtime=0) if task.output_gzip else content
