"""The limit on the number of connections, and the metrics and logs of connections that are refused.

At the limit, a new connection replaces the connection that has waited longest for its client. Connections whose
requests have arrived completely are never closed for a new one.
"""

from __future__ import annotations

import asyncio
import math
import resource
from typing import Literal, Protocol, get_args

import structlog

from recollect.service.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

# The reason why a connection is closed before or without an answer of the application.
Reason = Literal[
    "invalid_http",
    "request_timeout",
    "head_too_large",
    "too_many_connections",
    "too_many_pipelined",
    "write_timeout",
    "draining",
]

# Number of connections over the limit that may ask for the state of the process, so that a load balancer and Prometheus
# still get answers when clients hold all other connections.
_RESERVED = 32
# Number of open files of a process that are not connections.
_OTHER_FILES = 256
# Maximum time from the start of a connection to its first request while the server shuts down.
_FIRST_REQUEST_SECONDS = 1.0
# Refused connections are logged at most once in this time, for each reason.
_LOG_SECONDS = 1.0


class Connection(Protocol):
    """A connection that can be closed to make room for another one."""

    def evict(self) -> bool:
        """Close the connection. Return whether it is closed already; False if bytes of an answer must be sent first."""


class Handshake(Protocol):
    """A TLS connection whose handshake is in progress.

    Attributes:
        tcp_transport: The connection below TLS.
    """

    tcp_transport: asyncio.Transport

    def end_handshake(self) -> None:
        """Stop counting this connection as a handshake."""


class Connections:
    """The open connections of one server.

    Args:
        limit: Maximum number of connections; `_RESERVED` further connections may ask for the state of the process.
        metrics: Counts open and refused connections; None for the admin interface.

    Attributes:
        shutting_down: Whether the server shuts down, so that each connection closes after the request in progress.
    """

    def __init__(self, limit: int, metrics: Metrics | None) -> None:
        self.shutting_down = False
        # The latest time, on the event loop's clock, at which a request may arrive.
        self._last_arrival = math.inf
        self._limit, self._metrics = limit, metrics
        self._open: set[Connection] = set()
        # The open connections without a complete request that has no answer yet; the longest wait is first.
        self._waiting: dict[Connection, None] = {}
        self._unlogged: dict[Reason, int] = {}
        if metrics:
            for reason in get_args(Reason):  # starts at 0, so that Prometheus sees the first increase
                metrics.connections_refused.labels(reason)

    def open(self, connection: Connection) -> None:
        """Count a new connection, which waits for its client. Over the limit, close other connections that wait."""
        self._open.add(connection)
        if self._metrics:
            self._metrics.connections.inc()
        while self.exceed_limit() and self._waiting:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            if longest.evict():
                self.close(longest)
        self._waiting[connection] = None

    def close(self, connection: Connection) -> None:
        """Count a closed connection; without effect if it is counted already."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._open.remove(connection)
            if self._metrics:
                self._metrics.connections.dec()

    def begin_request(self, connection: Connection) -> None:
        """Note that a request begins to arrive: a connection that waits has the shortest wait now."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._waiting[connection] = None

    def begin_answer(self, connection: Connection) -> None:
        """Note that a request has arrived completely: the connection waits no longer."""
        self._waiting.pop(connection, None)

    def end_answer(self, connection: Connection) -> None:
        """Note that all complete requests have answers: the connection waits again."""
        if connection in self._open:
            self._waiting[connection] = None

    def shut_down(self, seconds: float) -> None:
        """Note that the server shuts down, and that all requests must arrive within `seconds`."""
        self.shutting_down = True
        self._last_arrival = asyncio.get_running_loop().time() + seconds

    def seconds_to_first_request(self, opened: float) -> float:
        """Time that a connection still has for its first request while the server shuts down.

        Args:
            opened: The time when the connection started, on the event loop's clock.
        """
        return self.seconds_to_arrive(max(0.0, opened + _FIRST_REQUEST_SECONDS - asyncio.get_running_loop().time()))

    def seconds_to_arrive(self, most: float) -> float:
        """Time that a request has to arrive: `most`, or less if the server shuts down earlier."""
        return max(0.0, min(most, self._last_arrival - asyncio.get_running_loop().time()))

    def exceed_limit(self) -> bool:
        return len(self._open) > self._limit

    def exceed_reserve(self) -> bool:
        return len(self._open) > self._limit + _RESERVED

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
