"""Logs that are events: one JSON object a line for machines, aligned text for a terminal; always on stderr."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs() -> None:
    """Set up structlog, and give the libraries' own words the same form."""
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without local variables: those hold queries, which are people's words.
    faults = [] if terminal else [structlog.processors.format_exc_info]
    renderer = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, *faults, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # one write a line: workers share the stream
    )
    handler = logging.StreamHandler(sys.stderr)
    formatted = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *faults, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=formatted))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
