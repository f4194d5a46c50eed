"""Writes the head and the body of an answer with one system call.

Uvicorn writes them apart. If the process is killed in between, a proxy has the head of an answer and can no longer send
the request to another replica.
"""

from __future__ import annotations

import asyncio

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class AnswerWriter:
    """The transport of one answer, as uvicorn uses it: holds the head back until the first part of the body.

    An answer that ends without a body must not use this class.

    Args:
        transport: The connection.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._is_head_written = False

    def write(self, data: bytes) -> None:
        if self._is_head_written or data == _CONTINUE:
            self._transport.write(data)
        elif self._head is None:
            self._head = data
        else:
            self._transport.writelines([self._head, data])
            self._is_head_written = True

    def close(self) -> None:
        """Close the connection. A head without a body is not sent: its request failed, and a proxy may repeat it."""
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
