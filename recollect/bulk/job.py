"""Bulk answers: answers all rows of a file or a stream, with one process for each core, or with tasks of Ray.

reader thread:  input -> blocks of rows -> idle worker process   (reading, pool or ray_tasks)
worker process: texts -> answers -> bytes of the output          (answering)
main thread:    blocks in the order of the input -> output       (output)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recollect.bulk.answering import Answered, Task, answer, header, open_version
from recollect.bulk.output import FileOutput, Output
from recollect.bulk.pool import WorkerPool
from recollect.bulk.reading import ANSWER_FIELDS, Block, Format, Input, local_input, open_input, read_blocks, recognise
from recollect.bulk.settings import PredictSettings
from recollect.core import extras
from recollect.core.errors import SettingsError
from recollect.core.options import check_query, chosen_options
from recollect.core.settings import default_live
from recollect.core.system.console import print_status, progress_bar
from recollect.core.system.threads import threads_or_cores
from recollect.core.vectors import check_vector
from recollect.edits.log import MemoryLog
from recollect.store.store import Store

# Number of blocks for each worker that are read, or answered but not written yet.
_BLOCKS_PER_WORKER = 4


def predict_file(settings: PredictSettings) -> int:
    """Answer all rows of an input. Return their number.

    Raises:
        ServiceError: If the settings contradict each other, the input is wrong, or the output belongs to another task.
        OSError: If a file cannot be read or written, for example because the disk is full.
    """
    if settings.input is not None and settings.text is not None:
        raise SettingsError(f"--input: expected no other query, found {settings.text!r}; leave out one of them")
    source = None if settings.input is None or str(settings.input) == "-" else settings.input
    target = None if settings.output is None or str(settings.output) == "-" else settings.output
    read = recognise("--input", source, settings.input_format or ("text" if source is None else None))
    is_stream = target is None or (isinstance(target, Path) and target.exists() and not target.is_file())
    written = Format("jsonl", False) if is_stream else recognise("--output", target, None)
    if settings.vector_column is not None:
        _check_vector_column(settings, read.name)
    parquet: Any = extras.load("bulk format", "parquet") if "parquet" in (read.name, written.name) else None
    if settings.ray is not None:
        extras.load("bulk workers", "ray").check_address(settings.ray)
    store = Store(settings.store, settings.verify_key, settings.bundle_cache)
    version, live = store.resolve(settings.version), settings.live or default_live(settings.verify_key)
    open_rows = parquet.open_rows if read.name == "parquet" else functools.partial(open_input, format_=read)
    with local_input(source) as (path, name, input_facts), open_rows(path, name=name) as rows:
        task = Task(
            store=_absolute(settings.store),
            version=version,
            sequence=_last_live_entry(store, version) if live == "read" else 0,
            verify_key=None if settings.verify_key is None else _absolute(settings.verify_key),
            bundle_cache=None if settings.bundle_cache is None else _absolute(settings.bundle_cache),
            options=chosen_options(settings),
            input_format=read.name,
            output_format=written.name,
            output_gzip=written.gzip,
            text_column=settings.text_column,
            columns=_kept_columns(settings, rows, written.name),
            where=f"{name}: {'line' if read.name in ('text', 'jsonl') else 'row'}",
            mark_bad_rows=settings.bad_rows == "mark",
            vector_column=settings.vector_column,
        )
        facts = None if input_facts is None else task.facts() | {"live": live} | input_facts
        convert = parquet.convert if written.name == "parquet" else None
        output = (
            Output(target, task.sequence)
            if target is None or (is_stream and isinstance(target, Path))
            else FileOutput(target, facts, task.sequence, settings.overwrite, convert)
        )
        task = dataclasses.replace(task, sequence=output.sequence)
        with output:
            check: Callable[[object], Any] = check_query
            if task.vector_column is not None:
                check = functools.partial(check_vector, manifest=store.manifest(version))
            blocks = read_blocks(rows, task.where, task.column, task.columns, task.mark_bad_rows, check)
            # The blocks are those of a run from the beginning, so their answers are the same.
            unanswered = (rest for block in blocks if (rest := block.after(output.rows)).queries)
            with _workers(task, settings) as answers, progress_bar(None, "query", "predict", done=output.rows) as bar:
                output.write_header(header(task, rows.empty))
                for answered in answers(unanswered):
                    output.write(answered.content, answered.rows)
                    share = rows.share_read()
                    bar.total = round(output.rows / share) if share else None  # an estimate until all is read
                    bar.update(answered.rows - bar.n)
            output.finish()
            return output.rows


def _check_vector_column(settings: PredictSettings, input_format: str) -> None:
    if "text_column" in settings.model_fields_set:
        raise SettingsError("--vector-column: expected no --text-column, found both; omit one of them")
    if input_format not in ("jsonl", "parquet"):
        raise SettingsError(f"--vector-column: expected Parquet or JSON lines, which have lists, found {input_format}")


def _last_live_entry(store: Store, version: str) -> int:
    """The sequence number of the last live entry of a version; that of the bundle if there is none."""
    log = MemoryLog.of(store, store.manifest(version))
    for _ in log.news():
        pass
    return log.sequence


@contextlib.contextmanager
def _workers(task: Task, settings: PredictSettings) -> Iterator[Callable[[Iterator[Block]], Iterator[Answered]]]:
    """Start processes, and open the version in one of them. Yield a function that answers blocks with all processes."""
    content = task.to_json()
    with (
        WorkerPool(threads_or_cores(settings.workers))
        if settings.ray is None
        else extras.load("bulk workers", "ray").open_tasks(settings.ray, settings.workers)
    ) as workers:
        for message in workers.result(workers.submit(open_version, content)):
            print_status(message)
        submit = functools.partial(workers.submit, answer, content)
        yield lambda blocks: _in_order(blocks, submit, workers.result, workers.count * _BLOCKS_PER_WORKER)


def _in_order(
    blocks: Iterator[Block], submit: Callable[[Block], Any], result: Callable[[Any], Answered], limit: int
) -> Iterator[Answered]:
    """The results of calls, in the order of the blocks; `limit` calls are started, with results that are not used yet.

    A thread reads the blocks, because the results of the first lines of a pipe must not wait for the next line.
    """
    waiting = queue.SimpleQueue[Any]()
    free, ended = threading.Semaphore(limit), False

    def read() -> None:
        try:
            for block in blocks:
                free.acquire()
                if ended:
                    return
                waiting.put(submit(block))
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (call := waiting.get()) is not None:
            if isinstance(call, BaseException):
                raise call
            yield result(call)
            free.release()
    finally:
        ended = True
        free.release()


def _kept_columns(settings: PredictSettings, rows: Input, output: str) -> list[str] | None:
    """The names of the columns that pass into the output; None means all fields of each JSON line."""
    kind, column = (
        ("text", settings.text_column) if settings.vector_column is None else ("vector", settings.vector_column)
    )
    kept = settings.columns if settings.columns is not None else rows.columns
    if rows.columns is None:
        if kept is None and output != "jsonl":
            raise SettingsError(f"--columns: a JSON line has no fixed fields; name the fields to keep in {output}")
    else:
        for flag, names in ((f"--{kind}-column", [column]), ("--columns", kept or [])):
            for name in names:
                if name not in rows.columns:
                    raise SettingsError(f"{flag}: expected one of {', '.join(rows.columns)}, found {name}")
    for name in kept or ():
        if name in ANSWER_FIELDS:
            raise SettingsError(
                f"--columns: the output has a column {name} of its own; leave {name} out, or rename it in the input"
            )
    if rows.empty is not None:
        extras.load("bulk format", "parquet").check_columns(rows.empty, kind, column, kept or [], output)
    return None if kept is None else list(dict.fromkeys(kept))


def _absolute(location: Path | str) -> str:
    """A location that is the same in every current folder."""
    return str(location) if "://" in str(location) else os.path.abspath(location)
