"""One HTTP connection, and what it may cost: lines that never end, a request that never ends, silence."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.http.problems import problem_bytes

# The request line and all headers; all trailers; the line before a chunk.
_MOST_HEAD_BYTES = 32 << 10
# From a request's first byte to its last: what a client may take to say what it wants.
_REQUEST_SECONDS = 30.0


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's connection, that answers 431 to an endless head and 408 to a request that never ends.

    Clients may send requests before they have the answers to earlier ones, and take answers in that order: what
    cannot be refused in its turn is not answered, and the connection closes after the answer before.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # What came since the last byte of a body, or the end of a head or a request.
        self._head_bytes, self._refused = 0, False
        # Of the last request that came whole; `cycle` is another once a further head is whole.
        self._before: RequestResponseCycle | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MOST_HEAD_BYTES:
            self._refuse_head()
        elif self._late is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_request()  # it was an empty line, or the end of a request that has its answer

    def on_message_begin(self) -> None:
        if not self._refused:
            super().on_message_begin()
            self._expect_end()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.cycle is self._before:  # later fields are trailers, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        self._head_bytes = 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _MOST_HEAD_BYTES:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            self._head_bytes = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()
            self._head_bytes, self._before = 0, self.cycle
            self._forget_late()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._late is not None:
            self._expect_end()  # anew: until now it may not have been read

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_late()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "expected HTTP/1.1, found something else")

    def _refuse_head(self) -> None:
        self._refuse(431, f"the request's headers are over {_MOST_HEAD_BYTES:,} bytes; send fewer or shorter ones")

    def _expect_request(self) -> None:
        """Hang up, unless something comes in the time that uvicorn gives after an answer."""
        if not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _expect_end(self) -> None:
        """Refuse the request that has begun, unless its end comes in time."""
        self._forget_late()
        self._late = self.loop.call_later(_REQUEST_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self.flow.read_paused:  # it is the client who waits
            self._expect_end()
        else:
            self._refuse(408, f"the request did not end within {_REQUEST_SECONDS:.0f} seconds; send it whole")

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: int, detail: str) -> None:
        """Answer the request that has begun, if it is its turn and no answer has begun, and hang up."""
        if self._refused:
            return
        self._refused = True
        self._forget_late()
        has_cycle = self.cycle is not self._before
        if self._before is not None and not self._before.response_complete:
            self._before.keep_alive = False  # its answer is the last
            if has_cycle:
                self.pipeline.popleft()
                self.cycle = self._before
        elif not self.transport.is_closing():
            if not (has_cycle and self.cycle.response_started):
                self.transport.write(problem_bytes(status, detail))
            self.transport.close()
