"""Traces, if OpenTelemetry is installed and its environment variables name a collector.

A span contains the method, the route and the status of a request. Paths, query strings, headers and the texts of
errors stay out, because they can contain typed text, uids and API keys.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = structlog.get_logger(__name__)

_COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CLOSE_SECONDS = 1.0
# Routes whose requests come from machines and have no spans.
_UNTRACED = ("/health/live", "/health/ready", "/metrics")


def open_tracer() -> Tracer | None:
    """Create a tracer, or return None if no environment variable names a collector or a package is missing."""
    if not any(os.environ.get(name) for name in _COLLECTOR_VARIABLES):
        return None
    try:
        return Tracer()
    except ModuleNotFoundError as missing:
        log.warning("no_traces", why=f"{missing.name} is not installed; pip install 'recollect-xmc[otel]'")
        return None


class Tracer:
    """Records a span for each request and for each of its stages."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter: Any = _LoggedExporter(OTLPSpanExporter())  # OpenTelemetry's base class is not loaded without traces
        self._provider: Any = TracerProvider(resource=Resource.create({"service.name": "recollect"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("recollect")

    def around(self, app: ASGIApp, route_of: Callable[[str], str]) -> ASGIApp:
        """Wrap an application, so that every request has a span, which continues the trace of the client.

        A route must not contain names that a client chose.
        """
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or (route := route_of(scope["path"])) in _UNTRACED:
                await app(scope, receive, send)
                return
            caller = extract({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]})
            with self._tracer.start_as_current_span(
                f"{scope['method']} {route}",
                caller,
                SpanKind.SERVER,
                {"http.request.method": scope["method"], "http.route": route},
                record_exception=False,
                set_status_on_exception=False,
            ) as span:

                async def send_with_status(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        span.set_attribute("http.response.status_code", message["status"])
                        if message["status"] >= 500:
                            span.set_status(Status(StatusCode.ERROR))
                    await send(message)

                await app(scope, receive, send_with_status)

        return traced

    def stages(self, milliseconds: Mapping[str, float]) -> None:
        """Record one span for each stage of an answer, one after the other; the last span ends now."""
        start = time.time_ns() - int(1e6 * sum(milliseconds.values()))
        for stage, spent in milliseconds.items():
            span = self._tracer.start_span(stage, start_time=start)
            start += int(1e6 * spent)
            span.end(end_time=start)

    def close(self) -> None:
        """Send the remaining spans; this takes at most one second."""
        exporting = threading.Thread(target=self._provider.shutdown, name="export-spans", daemon=True)
        exporting.start()
        exporting.join(_CLOSE_SECONDS)


class _LoggedExporter:
    """A span exporter that logs when the collector stops answering, and when it answers again.

    Without it, OpenTelemetry logs every attempt, several times a second.
    """

    def __init__(self, exporter: Any) -> None:
        self._exporter, self._is_down, self._reason = exporter, False, ""
        logging.getLogger(type(exporter).__module__).addFilter(self._remember)

    def _remember(self, record: logging.LogRecord) -> bool:
        """Keep the message of a failed attempt as the reason, instead of logging it."""
        self._reason = record.getMessage()
        return False

    def export(self, spans: Sequence[Any]) -> Any:
        result = self._exporter.export(spans)
        is_down = result.name != "SUCCESS"
        if is_down and not self._is_down:
            log.warning("collector_down", error=self._reason, effect="spans are dropped until the collector answers")
        elif self._is_down and not is_down:
            log.info("collector_up")
        self._is_down = is_down
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))
