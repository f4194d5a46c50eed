"""The limit on the number of connections, and the metrics and logs of connections that are refused."""

from __future__ import annotations

import asyncio
import resource
from typing import Literal, get_args

import structlog

from service.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

# The reason why a connection is closed before or without an answer of the application.
Reason = Literal[
    "invalid_http",
    "request_timeout",
    "head_too_large",
    "too_many_connections",
    "too_many_pipelined",
    "write_timeout",
]

# Number of connections over the limit that may ask for the state of the process, so that a load balancer and Prometheus
# still get answers when clients hold all other connections.
_RESERVED = 32
# Number of open files of a process that are not connections.
_OTHER_FILES = 256
# Refused connections are logged at most once in this time, for each reason.
_LOG_SECONDS = 1.0


class Connections:
    """The open connections of one server.

    Args:
        limit: Maximum number of connections; `_RESERVED` further connections may ask for the state of the process.
        metrics: Counts open and refused connections; None for the admin interface.
    """

    def __init__(self, limit: int, metrics: Metrics | None) -> None:
        self._limit, self._metrics = limit, metrics
        self._open = 0
        self._unlogged: dict[Reason, int] = {}
        if metrics:
            for reason in get_args(Reason):  # starts at 0, so that Prometheus sees the first increase
                metrics.connections_refused.labels(reason)

    def open(self) -> None:
        self._open += 1
        if self._metrics:
            self._metrics.connections.inc()

    def close(self) -> None:
        self._open -= 1
        if self._metrics:
            self._metrics.connections.dec()

    def exceed_limit(self) -> bool:
        return self._open > self._limit

    def exceed_reserve(self) -> bool:
        return self._open > self._limit + _RESERVED

    def record_refusal(self, reason: Reason, client: str | None) -> None:
        """Count a refused connection, and log it with the refused connections of the same reason since the last line.

        Args:
            reason: The reason, which is a label of the metric.
            client: Address of the client.
        """
        if self._metrics:
            self._metrics.connections_refused.labels(reason).inc()
        if reason in self._unlogged:
            self._unlogged[reason] += 1
        else:
            log.warning("connections_refused", reason=reason, count=1, client=client)
            self._unlogged[reason] = 0
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log_rest, reason, client)

    def _log_rest(self, reason: Reason, client: str | None) -> None:
        """Log the refused connections since the last line, until there are none."""
        if count := self._unlogged.pop(reason):
            log.warning("connections_refused", reason=reason, count=count, client=client)
            self._unlogged[reason] = 0
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log_rest, reason, client)


def usable_connections(wanted: int) -> int:
    """The number of connections that this process can open with its limit of open files; at most `wanted`."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, files - min(_OTHER_FILES, files // 2) - _RESERVED))
