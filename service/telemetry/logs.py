"""Writes logs to stderr: one event a line, as JSON, or as aligned text on a terminal.

A log line that cannot be written is lost, for example because the disk is full or the program that reads the log has
exited. The error would otherwise end a background thread, or fail a request.
"""

from __future__ import annotations

import contextlib
import logging
import sys

import structlog


class _Logger(structlog.WriteLogger):
    """Writes each log line with one write, because workers share the stream."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warning = error = critical = msg


def configure_logs(worker: int | None = None) -> None:
    """Configure structlog, and log the messages of libraries in the same format.

    Args:
        worker: Process id, which each line of one of several workers contains.
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
        logger_factory=lambda *_: _Logger(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    formatted = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tracebacks, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=formatted))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
