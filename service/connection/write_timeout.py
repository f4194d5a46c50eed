"""The write timeout of a connection: a client that reads nothing for a time loses its connection.

A TLS connection that is closed waits for the client's confirmation, so its client also loses it after a time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable

# Maximum time without progress while bytes wait to be sent.
_WRITE_SECONDS = 30.0
# Maximum time that a TLS client has to confirm the close of a connection after it has been sent all bytes.
_CLOSE_SECONDS = 1.0
# Position of `tcpi_bytes_acked` in Linux's `struct tcp_info`, and a size that includes it.
_BYTES_ACKED, _TCP_INFO_BYTES = 120, 128


class WriteTimeout:
    """Aborts a connection if its client receives nothing for 30 seconds while bytes wait in the transport's buffer.

    A client makes progress if its TCP acknowledges bytes. The size of the buffer does not show progress: the kernel
    takes further bytes only when a large part of its own buffer is free, and further answers make the buffer larger.

    Args:
        transport: The connection.
        tcp_transport: The TCP connection below a TLS connection; `transport` itself without TLS.
        on_timeout: Called before the connection is aborted because of its client.
    """

    def __init__(
        self, transport: asyncio.Transport, tcp_transport: asyncio.Transport, on_timeout: Callable[[], None]
    ) -> None:
        self._transport, self._tcp_transport, self._on_timeout = transport, tcp_transport, on_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._acknowledged = 0

    def unsent_bytes(self) -> int:
        """Number of bytes that the operating system has not taken yet."""
        unsent = self._transport.get_write_buffer_size()
        if self._tcp_transport is not self._transport:
            unsent += self._tcp_transport.get_write_buffer_size()
        return unsent

    def start(self) -> None:
        """Start the timers that are needed and do not run; call this after each write of an answer, and each close."""
        if self._timer is None and self.unsent_bytes():
            self._acknowledged = _acknowledged_bytes(self._transport)
            self._schedule()
        if self._close_timer is None and self._transport.is_closing():
            self._schedule_close()

    def stop(self) -> None:
        for timer in (self._timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._close_timer = None

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_WRITE_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self.unsent_bytes():
            return
        before, self._acknowledged = self._acknowledged, _acknowledged_bytes(self._transport)
        if self._acknowledged == before:
            self._on_timeout()
            self._transport.abort()
        else:
            self._schedule()

    def _schedule_close(self) -> None:
        self._close_timer = asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._end_close)

    def _end_close(self) -> None:
        """Abort the connection if all bytes have been sent; otherwise check again later."""
        if self.unsent_bytes():
            self._schedule_close()
        else:
            self._transport.abort()


def _acknowledged_bytes(transport: asyncio.Transport) -> int:
    """Number of bytes whose receipt the client's TCP has acknowledged."""
    file = os.dup(transport.get_extra_info("socket").fileno())  # uvloop's sockets have no `getsockopt`
    with socket.socket(fileno=file) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (count,) = struct.unpack_from("Q", info, _BYTES_ACKED)
    return int(count)
