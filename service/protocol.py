"""One HTTP connection, and what it may cost before there is a request: its head has a size, and its end a time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.problems import problem_bytes

# The request line and all headers.
_MOST_HEAD_BYTES = 32 << 10
# From a request's first byte to its last: what a client may take to say what it wants.
_REQUEST_SECONDS = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's connection, that answers 431 to an endless head and 408 to a request that never ends."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head, self._head_bytes, self._refused = True, 0, False
        self._late: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._late is None:
            self._late = self.loop.call_later(_REQUEST_SECONDS, self._give_up)
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > _MOST_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _MOST_HEAD_BYTES:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()
            self._in_head = True
            self._forget_late()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_late()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "expected HTTP/1.1, found something else")

    def _refuse_head(self) -> None:
        self._refuse(431, f"the request's head is over {_MOST_HEAD_BYTES:,} bytes; send shorter headers")

    def _give_up(self) -> None:
        self._refuse(408, f"the request did not end within {_REQUEST_SECONDS:.0f} seconds; send it whole")

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: int, detail: str) -> None:
        """Answer, unless an answer to the same request has begun, and hang up."""
        self._refused = True
        self._forget_late()
        if not self.transport.is_closing():
            if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
                self.transport.write(problem_bytes(status, detail))
            self.transport.close()
