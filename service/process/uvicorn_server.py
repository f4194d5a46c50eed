"""Uvicorn's server, without its signal handlers, and with the state that a graceful shutdown needs.

This file and `protocol.py` are the only users of uvicorn's internals (`server_state`, `on_tick`, `capture_signals`).
Uvicorn has no public way to read its connections or to disable its signal handlers, so pyproject.toml pins its minor
version.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from recollect.service.connection.connections import Connections
from recollect.service.connection.protocol import BoundedProtocol
from recollect.service.connection.tls import Tls
from recollect.service.connection.tls_connection import TlsConnection

# Longer than a proxy keeps an idle connection. The proxy therefore closes idle connections first, and never sends a
# request on a closed connection.
_KEEP_ALIVE_SECONDS = 75
# With less time, uvicorn logs an error even if no request is in progress.
_MIN_CLOSE_SECONDS = 0.3
# Number of ticks between two checks whether the certificate's files have changed; uvicorn ticks ten times a second.
_TLS_CHECK_TICKS = 50


class UvicornServer(uvicorn.Server):
    """Serves one application on one socket until `close_within` is called, with TLS if `tls` is given."""

    def __init__(self, app: ASGIApp, connections: Connections, tls: Tls | None = None) -> None:
        def connect(**arguments: Any) -> asyncio.BaseProtocol:
            connection = BoundedProtocol(open_connections=connections, **arguments)
            return TlsConnection(connection, tls.context, connections) if tls else connection

        http: Any = connect
        config = uvicorn.Config(
            app,
            http=http,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._connections, self._tls = connections, tls
        self._known_requests, self._last_request = 0, -math.inf

    def has_connections(self) -> bool:
        return bool(self.server_state.connections)

    def last_request_time(self) -> float:
        """The time of the last request on the event loop's clock; the present time while a request is in progress."""
        state = self.server_state
        if state.total_requests != self._known_requests or state.tasks:
            self._known_requests, self._last_request = state.total_requests, asyncio.get_running_loop().time()
        return self._last_request

    def close_within(self, seconds: float) -> None:
        """Close the listening socket and finish the requests in progress; cancel them after `seconds`."""
        seconds = max(_MIN_CLOSE_SECONDS, seconds)
        self.config.timeout_graceful_shutdown = seconds  # type: ignore[assignment] # any number works
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        self.last_request_time()  # uvicorn calls this ten times a second
        if self._tls and counter % _TLS_CHECK_TICKS == 0:
            self._tls.reload_if_changed()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        seconds = self.config.timeout_graceful_shutdown or math.inf
        # Uvicorn sees only 0.1 s later that a connection has closed.
        self._connections.shut_down(max(seconds - 0.2, seconds / 2))
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # `worker.py` handles signals
