"""Traces, where OpenTelemetry is installed and its own environment variables say where they go."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import structlog
from starlette.types import ASGIApp

log = structlog.get_logger(__name__)

_WHERE = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CLOSE_SECONDS = 1.0
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "opentelemetry.instrumentation.asgi")


class Tracer:
    """Spans of requests and of their stages; none at all unless they were asked for."""

    def __init__(self) -> None:
        self._provider: Any = None
        if not any(os.environ.get(name) for name in _WHERE):
            return
        if lacking := [name for name in _NEEDED if not _installed(name)]:
            log.warning("no_traces", why=f"{lacking[0]} is not installed; pip install 'recollect[otel]'")
            return
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider(resource=Resource.create({"service.name": "recollect"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("recollect")

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application with a span around every request, in the trace that its caller began."""
        if self._provider is None:
            return app
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

        traced: ASGIApp = OpenTelemetryMiddleware(
            app, tracer_provider=self._provider, excluded_urls="health/.*,metrics", exclude_spans=["receive", "send"]
        )
        return traced

    def stages(self, milliseconds: Mapping[str, float]) -> None:
        """Spans of the stages that an answer went through, one after the other, up to now."""
        if self._provider is None:
            return
        start = time.time_ns() - int(1e6 * sum(milliseconds.values()))
        for stage, spent in milliseconds.items():
            span = self._tracer.start_span(stage, start_time=start)
            start += int(1e6 * spent)
            span.end(end_time=start)

    def close(self) -> None:
        """Send what is not sent yet, if that takes no longer than a stop may."""
        if self._provider is not None:
            sending = threading.Thread(target=self._provider.shutdown, name="send-spans", daemon=True)
            sending.start()
            sending.join(_CLOSE_SECONDS)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
