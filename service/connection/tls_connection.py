"""One TLS connection: it counts from the moment it is accepted, and its handshake has a short time limit.

The `ssl` argument of `loop.create_server` is not used, because the HTTP connection exists for the event loop only after
the handshake: connections whose clients never send a handshake would not be counted or limited.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import cast

from recollect.service.connection.connections import Connections
from recollect.service.connection.protocol import BoundedProtocol

# Maximum time from the accepted connection to the end of the handshake.
_HANDSHAKE_SECONDS = 5.0


class TlsConnection(SSLProtocol):
    """Decrypts the bytes of a connection for its HTTP connection. Works on the event loops of asyncio and of uvloop."""

    # Size of the buffer that each connection allocates; asyncio's 256 KiB are too much for thousands of connections.
    max_size = 32 << 10

    def __init__(self, protocol: BoundedProtocol, context: ssl.SSLContext, open_connections: Connections) -> None:
        loop = asyncio.get_running_loop()
        # The waiter is None: nothing waits for the end of the handshake.
        super().__init__(
            loop,
            protocol,
            context,
            None,  # type: ignore[arg-type]
            server_side=True,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,  # type: ignore[arg-type] # any number works
        )
        self._open_connections = open_connections
        # The connections that uvicorn shuts down. The handshake belongs to them until the HTTP connection replaces it.
        self._shut_down_by_server = protocol.connections
        protocol.handshake = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.tcp_transport = cast(asyncio.Transport, transport)
        self._opened = asyncio.get_running_loop().time()
        self._shut_down_by_server.add(self)  # type: ignore[arg-type]
        self._open_connections.open(self)
        if self._open_connections.exceed_reserve():
            self._open_connections.record_refusal("too_many_connections", self._client_address())
            self.tcp_transport.abort()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.end_handshake()
        super().connection_lost(exc)

    def end_handshake(self) -> None:
        """Stop counting this connection as a handshake: it is closed, or its HTTP connection counts from now on."""
        self._open_connections.close(self)
        self._shut_down_by_server.discard(self)

    def evict(self) -> bool:
        self._open_connections.record_refusal("too_many_connections", self._client_address())
        self.tcp_transport.abort()
        return True

    def shutdown(self) -> None:
        """Close the connection unless its handshake ends in a short time. Uvicorn calls this when the server stops."""
        seconds = self._open_connections.seconds_to_first_request(self._opened)
        asyncio.get_running_loop().call_later(seconds, self._abort_handshake)

    def _abort_handshake(self) -> None:
        if self in self._shut_down_by_server:  # otherwise the handshake has ended
            self.tcp_transport.abort()

    def _client_address(self) -> str | None:
        address = self.tcp_transport.get_extra_info("peername")
        return address[0] if address else None
