"""Traces, if OpenTelemetry is installed and its environment variables name a collector."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import structlog
from starlette.types import ASGIApp

log = structlog.get_logger(__name__)

_COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CLOSE_SECONDS = 1.0


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
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider: Any = TracerProvider(resource=Resource.create({"service.name": "recollect"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("recollect")
        self._middleware: Any = OpenTelemetryMiddleware

    def around(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application, so that every request has a span, which continues the trace of the client."""
        traced: ASGIApp = self._middleware(
            app, tracer_provider=self._provider, excluded_urls="health/.*,metrics", exclude_spans=["receive", "send"]
        )
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
