"""The write timeout of a connection: a client that reads nothing for a time loses its connection."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable

# Maximum time without progress while bytes wait to be sent.
_WRITE_SECONDS = 30.0
# Position of `tcpi_bytes_acked` in Linux's `struct tcp_info`, and a size that includes it.
_BYTES_ACKED, _TCP_INFO_BYTES = 120, 128


class WriteTimeout:
    """Aborts a connection if its client receives nothing for 30 seconds while bytes wait in the transport's buffer.

    A client makes progress if its TCP acknowledges bytes. The size of the buffer does not show progress: the kernel
    takes further bytes only when a large part of its own buffer is free, and further answers make the buffer larger.

    Args:
        transport: The connection.
        on_timeout: Called before the connection is aborted.
    """

    def __init__(self, transport: asyncio.Transport, on_timeout: Callable[[], None]) -> None:
        self._transport, self._on_timeout = transport, on_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._acknowledged = 0

    def start(self) -> None:
        """Start the timer if bytes wait and the timer does not run; call this after each write of an answer."""
        if self._timer is None and self._transport.get_write_buffer_size():
            self._acknowledged = _acknowledged_bytes(self._transport)
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WRITE_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._transport.get_write_buffer_size():
            return
        before, self._acknowledged = self._acknowledged, _acknowledged_bytes(self._transport)
        if self._acknowledged == before:
            self._on_timeout()
            self._transport.abort()
        else:
            self._schedule()


def _acknowledged_bytes(transport: asyncio.Transport) -> int:
    """Number of bytes whose receipt the client's TCP has acknowledged."""
    file = os.dup(transport.get_extra_info("socket").fileno())  # uvloop's sockets have no `getsockopt`
    with socket.socket(fileno=file) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (count,) = struct.unpack_from("Q", info, _BYTES_ACKED)
    return int(count)
