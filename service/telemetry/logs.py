"""Writes logs to stderr: one event a line, as JSON, or as aligned text on a terminal.

A thread writes the lines. So a full disk, or a pipe that nobody reads, never delays an answer: lines that cannot be
written are dropped and counted.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import TextIO, cast

import structlog

# Maximum number of lines that wait for the thread, and maximum time in which `flush_logs` waits for them.
_MAX_LINES, _FLUSH_SECONDS = 4096, 1.0


class _LogStream(io.TextIOBase):
    """Passes lines to the thread that writes them, and calls `on_drop` for each line that is dropped."""

    on_drop: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs. It does not run in a process that was forked."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
            self._thread.start()

    def write(self, line: str) -> int:
        if self._lines.qsize() < _MAX_LINES:
            self._lines.put(line)
        else:
            self.on_drop()
        return len(line)

    def wait(self, seconds: float) -> None:
        """Wait until the lines so far are written, for at most so many seconds."""
        if self._thread is not None and self._thread.is_alive():
            written = threading.Event()
            self._lines.put(written)
            written.wait(seconds)

    def _write_lines(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            # One call for each line, because workers share the file. Python's own stream would stay locked at the exit.
            left = line.encode("utf-8", "backslashreplace")
            try:
                while left:
                    left = left[os.write(2, left) :]
            except OSError:
                self.on_drop()


_stream = _LogStream()


def flush_logs() -> None:
    """Wait until the log lines are written, for at most one second. Call it before `os._exit`."""
    _stream.wait(_FLUSH_SECONDS)


def count_dropped_lines(on_drop: Callable[[], object]) -> None:
    """Call a function for each log line that is dropped from now on."""
    _stream.on_drop = on_drop


def configure_logs(worker: int | None = None) -> None:
    """Configure structlog, and log the messages of libraries in the same format.

    Each line of one of several workers contains its process id, `worker`.
    """
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if worker is not None:
        shared.append(lambda logger, method, event: {**event, "worker": worker})
    # Tracebacks contain no local variables, because these contain queries, which are private.
    tracebacks = [] if terminal else [structlog.processors.format_exc_info]
    renderer = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, *tracebacks, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: structlog.WriteLogger(cast(TextIO, _stream)),
    )
    handler = logging.StreamHandler(_stream)
    formatted = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tracebacks, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=formatted))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    _stream.start()
    atexit.register(flush_logs)
