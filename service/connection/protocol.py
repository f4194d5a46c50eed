"""One HTTP connection with limits on its request heads, its waiting time and its unanswered requests.

A connection also answers a request that offers an upgrade as HTTP/1.1, and refuses a request without a valid `Host`.

Plain uvicorn (0.54, httptools) has none of these limits, and one client can stop it. Measured with one connection on
127.0.0.1: 32 MB of headers or trailers without an end grow the process by 643 MB; a header value of 48 MB blocks all
other clients for 4.5 s, because the parser copies the value for every read; 16 MB of pipelined requests whose answers
the client does not read grow the process by 1,254 MB; a client that sends half a head holds its connection forever.
If `test_plain_uvicorn_has_no_limit_on_heads` fails, uvicorn has such limits: then delete this file.

The class overrides methods of uvicorn that are not a public API, so pyproject.toml pins uvicorn's minor version.
"""

from __future__ import annotations

import asyncio
import functools
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from recollect.service.connection.answer_writer import AnswerWriter
from recollect.service.connection.connections import Connections, Handshake, Reason
from recollect.service.connection.parser import RequestParser
from recollect.service.connection.write_timeout import WriteTimeout
from recollect.service.errors import DrainingError
from recollect.service.http.problems import problem_bytes

# Maximum size of the request line with all headers, of all trailers, and of the line before a chunk.
_MAX_HEAD_BYTES = 32 << 10
# Maximum time from the first byte of a request to its last byte.
_REQUEST_SECONDS = 30.0
# Maximum time of a connection over the limit without a complete request.
_RESERVED_SECONDS = 5.0
# Maximum number of requests that wait for the answer to an earlier request on the same connection.
_MAX_PIPELINED = 100
# Paths that a connection over the limit may ask for.
_STATE_PATHS = re.compile(rb"(/health/(live|ready)|/metrics)([?#].*)?")
# A host with an optional port, or nothing (RFC 9110, section 7.2).
_HOST = re.compile(rb"(\[[0-9A-Za-z:.]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(:[0-9]*)?")


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's connection with limits: a head that is too large gets 431, and a request that takes too long gets 408.

    A client may send several requests before it reads the first answer (pipelining), and receives the answers in the
    order of the requests. If a bad request arrives while earlier requests have no answer yet, it gets no answer: the
    connection closes after the answer to the request before it.
    """

    def __init__(self, *args: Any, open_connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = RequestParser(self)  # type: ignore[assignment]
        self._open_connections = open_connections
        # The TLS connection until the end of its handshake; None without TLS.
        self.handshake: Handshake | None = None
        # Number of bytes received since the last byte of a body, or since the end of a head or of a request.
        self._head_bytes = 0
        # True when the connection is going to close: all further bytes are ignored.
        self.refused = False
        # True if the connection is over the limit, so that it may ask only for the state of the process.
        self._reserved = False
        # The last request that arrived completely. While the body of a new request arrives, `cycle` is
        # the new request.
        self._last_complete: RequestResponseCycle | None = None
        self._request_timer: asyncio.TimerHandle | None = None

    # The event loop calls these methods.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        tcp_transport = transport
        if self.handshake is not None:
            tcp_transport = self.handshake.tcp_transport
            self.handshake.end_handshake()
            self.handshake = None
        # The callback does not refer to this object: the two would wait for the garbage collector, with a large head.
        self._write_timeout = WriteTimeout(
            transport,
            tcp_transport,
            functools.partial(self._open_connections.record_refusal, "write_timeout", self._client_address()),
        )
        self._open_connections.open(self)
        self._reserved = self._open_connections.exceed_limit()
        if self._open_connections.exceed_reserve():
            self._refuse_connection()
        else:
            self._start_idle_timer()

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        self._head_bytes += len(data)
        super().data_received(data)  # also cancels the idle timer
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_head()
        elif self._request_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._start_idle_timer()  # the data was an empty line, or the rest of an answered request

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_timer()
        self._write_timeout.stop()
        self._open_connections.close(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timeout.start()

    # The server, a timer and `Connections` close the connection with these methods.

    def shutdown(self) -> None:
        """Close the connection after the request in progress.

        A client may send a request at this very moment. So a request that has begun to arrive is answered, and a new
        connection has a short time for its first request.
        """
        is_head_arriving = self._request_timer is not None and self.cycle is self._last_complete
        is_new = self._request_timer is None and self._last_complete is None
        if is_new:
            self._unset_keepalive_if_required()
            self._start_idle_timer()
        elif is_head_arriving:
            self._start_request_timer()
        else:
            super().shutdown()
            self._write_timeout.start()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._write_timeout.start()

    def evict(self) -> bool:
        self._record_refusal("too_many_connections")
        self._stop_reading_requests()
        if self._write_timeout.unsent_bytes():
            self.transport.close()
            self._write_timeout.start()
            return False
        self.transport.abort()
        return True

    # The HTTP parser calls these methods.

    def on_message_begin(self) -> None:
        if self.refused:
            return
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._record_refusal("too_many_pipelined")
            self._close_after_answers()
        else:
            super().on_message_begin()
            self._start_request_timer()
            self._open_connections.begin_request(self)

    def on_url(self, url: bytes) -> None:
        if not self.refused:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Ignore the headers of a refused request: uvicorn would add them to the request that waits before it. Ignore
        # trailers too: fields after the body.
        if not self.refused and self.cycle is self._last_complete:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.refused or (self._is_first_round() and self.parser.get_method() != b"CONNECT"):
            return
        self._head_bytes = 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _MAX_HEAD_BYTES:
            self._refuse_head()
        elif problem := self._head_problem():
            self._refuse(400, "invalid_http", problem)
        elif self._reserved and not _STATE_PATHS.fullmatch(self.url):
            self._refuse_connection()
        else:
            super().on_headers_complete()
            if self._reserved or self._open_connections.shutting_down:
                self.cycle.keep_alive = False
            if self.parser.get_method() != b"HEAD":
                self.cycle.transport = AnswerWriter(self.transport)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if not self.refused:
            self._head_bytes = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not (self.refused or self._is_first_round()):
            super().on_message_complete()
            self._head_bytes, self._last_complete = 0, self.cycle
            self._cancel_request_timer()
            if not self.cycle.response_complete:
                self._open_connections.begin_answer(self)

    # uvicorn calls these methods.

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._write_timeout.start()
        if self._last_complete is not None and self._last_complete.response_complete:
            self._open_connections.end_answer(self)
        if self._request_timer is not None:
            self._start_request_timer()  # restart: uvicorn may have paused before the next request

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "invalid_http", "expected HTTP/1.1, found something else")

    # Checks of a head.

    def _is_first_round(self) -> bool:
        """Whether the parser is going to pass this request again, without its offer to upgrade."""
        return self.parser.should_upgrade()

    def _head_problem(self) -> str | None:
        """The reason why a head is not HTTP/1.1; None if it is."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            return f"expected HTTP/1.1, found HTTP/{version}"
        if self.parser.get_method() == b"CONNECT":
            return "the service is not a proxy, so it does not accept CONNECT"
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            return f"expected one Host header, found {len(hosts)}"
        if hosts and not _HOST.fullmatch(hosts[0]):
            return "Host: expected a name or an address with an optional port, found other characters"
        return None

    # Timers.

    def _start_idle_timer(self) -> None:
        """Close the connection unless a request begins in time."""
        if not self.transport.is_closing():
            seconds = _RESERVED_SECONDS if self._reserved else self.timeout_keep_alive
            if self._open_connections.shutting_down:
                seconds = self._open_connections.seconds_to_first_request(self._opened)
            self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _start_request_timer(self) -> None:
        """Refuse the request that is being received, unless its last byte arrives in time."""
        self._cancel_request_timer()
        seconds = self._open_connections.seconds_to_arrive(self._request_seconds())
        self._request_timer = self.loop.call_later(seconds, self._on_request_timeout)

    def _request_seconds(self) -> float:
        return _RESERVED_SECONDS if self._reserved else _REQUEST_SECONDS

    def _on_request_timeout(self) -> None:
        if self._open_connections.shutting_down:
            self._refuse(503, "draining", str(DrainingError()))
        elif self.flow.read_paused:  # the server has stopped reading, so the client is not late
            self._start_request_timer()
        else:
            detail = f"the request did not end within {self._request_seconds():.0f} seconds; send it whole"
            self._refuse(408, "request_timeout", detail)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    # Refusals.

    def _refuse_head(self) -> None:
        detail = f"the request's headers are over {_MAX_HEAD_BYTES:,} bytes; send fewer or shorter ones"
        self._refuse(431, "head_too_large", detail)

    def _refuse_connection(self) -> None:
        self._refuse(503, "too_many_connections", "too many connections are open; try again, or use another replica")

    def _refuse(self, status: int, reason: Reason, detail: str) -> None:
        """Close the connection.

        Answer the request that is being received with this error, unless an earlier request has no answer yet.
        """
        if self.refused:
            return
        self._record_refusal(reason)
        # Before the method of the request has arrived, the parser still has the method of the request before it.
        is_head = self._request_timer is not None and self.url != b"" and self.parser.get_method() == b"HEAD"
        if self._last_complete is not None and not self._last_complete.response_complete:
            self._close_after_answers()
            return
        self._stop_reading_requests()
        if not self.transport.is_closing():
            is_answer_begun = self.cycle is not self._last_complete and self.cycle.response_started
            if not is_answer_begun:
                self.transport.write(problem_bytes(status, detail, reason, with_body=not is_head))
            self.transport.close()
            self._write_timeout.start()

    def _record_refusal(self, reason: Reason) -> None:
        self._open_connections.record_refusal(reason, self._client_address())

    def _client_address(self) -> str | None:
        return self.client[0] if self.client else None

    def _close_after_answers(self) -> None:
        """Close the connection after the answer to the last complete request; drop the request after that one."""
        assert self._last_complete is not None
        self._stop_reading_requests()
        self._last_complete.keep_alive = False
        if self.cycle is not self._last_complete:
            self.pipeline.popleft()  # uvicorn puts the newest request on the left
            self.cycle = self._last_complete

    def _stop_reading_requests(self) -> None:
        self.refused = True
        self._cancel_request_timer()
