"""Bulk answers: answers all rows of a file or a stream, with one process for each core, or with actors of Ray.

reader thread:  input -> blocks -> idle worker process           (service.bulk.reading, service.bulk.pool, service.ray)
worker process: rows -> answers -> bytes of the output           (service.bulk.rows, service.bulk.writing)
main thread:    blocks in the order of the input -> output       (recollect.service.bulk.output)
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recollect.service.bulk.blocks import Answered, Block, Input
from recollect.service.bulk.formats import input_format, output_format
from recollect.service.bulk.output import FileOutput, StreamOutput
from recollect.service.bulk.pool import WorkerPool
from recollect.service.bulk.progress import Progress
from recollect.service.bulk.reading import open_input
from recollect.service.bulk.rows import ANSWER_COLUMNS
from recollect.service.bulk.task import Task
from recollect.service.bulk.writing import header
from recollect.service.command_settings import PredictSettings
from recollect.service.errors import InputError, SettingsError
from recollect.service.ray.cluster import check_address, connected, cores_of_cluster
from recollect.service.storage.connect import without_credentials
from recollect.service.store.locations import open_store
from recollect.service.threads import threads_or_cores

# Number of blocks for each worker that are read, or answered but not written yet.
_BLOCKS_PER_WORKER = 4

_Submit = Callable[[Block], Future[Answered]]


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
    is_stream = target is None or (isinstance(target, Path) and target.exists() and not target.is_file())
    read, written = input_format(source, settings.input_format), output_format(None if is_stream else target)
    if "parquet" in (read.name, written.name) and importlib.util.find_spec("pyarrow") is None:
        raise SettingsError("Parquet files need pyarrow; pip install 'recollect-xmc[parquet]'")
    if settings.ray is not None:
        check_address(settings.ray)
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    with _local_input(source) as (path, name, input_facts), open_input(path, read, name) as rows:
        task = Task(
            store=_absolute(settings.store),
            version=store.resolve(settings.version),
            verify_key=None if settings.verify_key is None else _absolute(settings.verify_key),
            bundle_cache=None if settings.bundle_cache is None else _absolute(settings.bundle_cache),
            options=settings.answer_options(),
            input_name=rows.name,
            input_format=read.name,
            output_format=written.name,
            output_gzip=written.gzip,
            text_column=settings.text_column,
            columns=_kept_columns(settings, rows, written.name),
            mark_bad_rows=settings.bad_rows == "mark",
        )
        facts = None if input_facts is None else task.facts() | input_facts
        with _open_output(target, facts, settings.overwrite, _converter(written.name)) as output:
            if not output.complete:
                with _answering(task, settings) as (submit, workers):
                    output.write_header(header(task, rows.empty))
                    _answer_all(rows, task, output, submit, workers * _BLOCKS_PER_WORKER)
                output.finish()
            return output.rows


@contextlib.contextmanager
def _local_input(source: Path | str | None) -> Iterator[tuple[Path | None, str, dict[str, Any] | None]]:
    """The file of an input, its name in messages, and facts by which a later run recognises it.

    The file is None for standard input. The facts are None if the input cannot be read again.
    """
    if isinstance(source, str):
        from recollect.service.bulk.objects import downloaded

        with downloaded(source) as (path, sha256):
            yield path, without_credentials(source), {"input sha256": sha256}
    elif source is None:
        yield None, "standard input", None
    else:
        yield source, str(source), _facts(source) if source.is_file() else None


def _open_output(
    target: Path | str | None, facts: dict[str, Any] | None, overwrite: bool, convert: Any
) -> FileOutput | StreamOutput:
    if isinstance(target, str):
        from recollect.service.bulk.objects import ObjectOutput

        return ObjectOutput(target, facts, overwrite, convert)
    if target is None or (target.exists() and not target.is_file()):
        return StreamOutput(target)
    return FileOutput(target, facts, overwrite, convert)


@contextlib.contextmanager
def _answering(task: Task, settings: PredictSettings) -> Iterator[tuple[_Submit, int]]:
    """The function that lets a worker process or an actor answer a block, and the number of workers."""
    workers = threads_or_cores(settings.workers)
    if settings.ray is None:
        with WorkerPool(task, workers) as pool:
            yield pool.submit, workers
        return
    with connected(settings.ray, workers):
        from recollect.service.ray.pool import ActorPool

        workers = settings.workers or cores_of_cluster()
        with ActorPool("recollect.service.bulk.worker", task.to_json(), workers) as actors:
            yield lambda block: actors.submit(block.payload, block.first), workers


def _answer_all(rows: Input, task: Task, output: FileOutput | StreamOutput, submit: _Submit, most_blocks: int) -> None:
    """Write the answers of all rows after those that are written already."""
    progress = Progress(output.rows, rows.share_read)
    try:
        for answered in _in_order(rows, task, output.rows, submit, most_blocks):
            output.write(answered.content, answered.rows)
            progress.update(output.rows)
            if answered.error is not None:
                raise InputError(answered.error)
    except BaseException:
        progress.clear()
        raise
    progress.finish(output.rows)


def _in_order(rows: Input, task: Task, skip: int, submit: _Submit, most_blocks: int) -> Iterator[Answered]:
    """The answered blocks in the order of the input.

    A thread reads the input, because the answers to the first lines of a pipe must not wait for the next line.
    """
    waiting: queue.Queue[Future[Answered] | BaseException | None] = queue.Queue(most_blocks)

    def read() -> None:
        try:
            for block in rows.blocks(skip, [task.text_column, *(task.columns or ())]):
                waiting.put(submit(block))
            waiting.put(None)
        except BaseException as error:  # also the pool's error if it is closed meanwhile
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    while (found := waiting.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        yield found.result()


def _kept_columns(settings: PredictSettings, rows: Input, output: str) -> list[str] | None:
    """The names of the columns that pass into the output; None means all fields of each JSON line.

    Raises:
        SettingsError: If a column is missing, or has the name of a column of the answers.
    """
    kept = settings.columns if settings.columns is not None else rows.columns
    if rows.columns is None:
        if kept is None and output != "jsonl":
            raise SettingsError(f"--columns: a JSON line has no fixed fields; name the fields to keep in {output}")
    else:
        for flag, names in (("--text-column", [settings.text_column]), ("--columns", kept or [])):
            for name in names:
                if name not in rows.columns:
                    raise SettingsError(f"{flag}: expected one of {', '.join(rows.columns)}, found {name}")
    for name in kept or ():
        if name in ANSWER_COLUMNS:
            raise SettingsError(
                f"--columns: the output has a column {name} of its own; leave {name} out, or rename it in the input"
            )
    return None if kept is None else list(dict.fromkeys(kept))


def _absolute(location: Path | str) -> str:
    """A location that is the same in every current folder."""
    return str(location) if "://" in str(location) else os.path.abspath(location)


def _facts(path: Path) -> dict[str, Any]:
    """Size and time of the last change of an input, by which a later run recognises it."""
    status = os.stat(path)
    changed = datetime.fromtimestamp(status.st_mtime_ns // 10**9, UTC).isoformat()
    return {"input bytes": status.st_size, "input changed": f"{changed} {status.st_mtime_ns % 10**9}"}


def _converter(output: str) -> Any:
    if output != "parquet":
        return None
    from recollect.service.bulk.parquet_output import convert

    return convert
