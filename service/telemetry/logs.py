"""Writes logs to stderr: one event a line, as JSON, or as aligned text on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs() -> None:
    """Configure structlog, and log the messages of libraries in the same format."""
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
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
        logger_factory=structlog.WriteLoggerFactory(
            sys.stderr
        ),  # one write for each line, because workers share the stream
    )
    handler = logging.StreamHandler(sys.stderr)
    formatted = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tracebacks, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=formatted))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
