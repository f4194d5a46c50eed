"""Limits of one connection, and their errors: head size, request time, idle time, unanswered requests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import resource
import select
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from recollect.service.connection import protocol
from recollect.service.connection.connections import Connections
from tests.service.http_helpers import Server, serving
from tests.service.raw_http import (
    BODY,
    CHUNKED,
    HEAD,
    WHOLE,
    assert_refused,
    connect,
    next_status,
    received_for,
    statuses,
)

SHORT_REQUEST_TIME = "from recollect.service.connection import protocol\nprotocol._REQUEST_SECONDS = 0.3\n"
SHORT_IDLE_TIME = "from recollect.service.process import uvicorn_server\nuvicorn_server._KEEP_ALIVE_SECONDS = 1\n"
# Program of a server whose answers take far longer than the time limit for receiving a request.
SLOW = f"""{SHORT_REQUEST_TIME}
import time
from recollect.service.predictor import predictor
answer = predictor.Predictor.predict_together
def answer_slowly(self, requests, *rest):
    if any("bread" in queries for queries, _ in requests):
        time.sleep(1)
    return answer(self, requests, *rest)
predictor.Predictor.predict_together = answer_slowly
"""


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", prelude=SHORT_REQUEST_TIME) as server:
        yield server


@pytest.fixture(scope="module")
def short_idle_server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", prelude=SHORT_IDLE_TIME) as server:
        yield server


@pytest.fixture(scope="module")
def slow_server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", "--cache-mb", "0", prelude=SLOW) as server:
        yield server


@pytest.mark.parametrize("request_bytes", [WHOLE, CHUNKED + b"12\r\n" + BODY + b"\r\n0\r\n\r\n"])
def test_an_answer_arrives_in_one_segment(server: Server, request_bytes: bytes) -> None:
    # A process that is killed between two segments would leave a proxy with a head without a body.
    with connect(server) as connection:
        connection.sendall(request_bytes)
        next_status(connection)
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    (segments,) = struct.unpack_from("I", info, 152)  # tcpi_data_segs_in
    assert segments == 1


def still_answers(server: Server) -> bool:
    """Whether another client still gets an answer."""
    return httpx.post(f"{server.url}/predict", content=BODY, headers={"content-type": "application/json"}).is_success


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X-Long: " + b"x" * 100_000,
        HEAD + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n" + BODY,
        HEAD + b"X: y\r\n" * 20_000,
        b"GET /" + b"x" * 100_000,
    ],
    ids=["endless header", "long header", "many headers", "long path"],
)
def test_head_without_an_end_is_refused(server: Server, head: bytes) -> None:
    assert_refused(server, head, 431, "head_too_large")
    assert still_answers(server)


def test_incomplete_request_after_a_head_request_gets_408_with_its_body(server: Server) -> None:
    received = received_for(server, b"HEAD /health/live HTTP/1.1\r\nHost: x\r\n\r\n", b"G")
    assert statuses(received) == [200, 408]
    assert b'"code":"request_timeout"' in received


@pytest.mark.parametrize(
    "half",
    [b"POST /pre", HEAD, HEAD + b"\r\n", HEAD + b"\r\n" + BODY[:5]],
    ids=["line", "head", "no body", "half a body"],
)
def test_incomplete_request_gets_408_after_its_time_limit(server: Server, half: bytes) -> None:
    assert_refused(server, half, 408, "request_timeout")
    assert still_answers(server)


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), b"hello\r\n\r\n"])
def test_bytes_that_are_not_http_get_400(server: Server, noise: bytes) -> None:
    assert_refused(server, noise, 400, "invalid_http")


def test_slow_request_is_answered_if_its_last_byte_arrives_in_time(server: Server) -> None:
    with connect(server) as connection:
        for byte in HEAD + b"\r\n" + BODY:
            connection.sendall(bytes([byte]))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "lines",
    [b"0\r\nX-Long: " + b"x" * 40_000, b"0\r\n" + b"X: y\r\n" * 8_000, b"1;" + b"x" * 40_000],
    ids=["endless trailer", "many trailers", "endless chunk extension"],
)
def test_chunk_lines_and_trailers_without_an_end_are_refused(short_idle_server: Server, lines: bytes) -> None:
    with connect(short_idle_server) as connection:
        connection.sendall(CHUNKED.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(lines)
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")
    assert still_answers(short_idle_server)


def test_body_of_many_small_chunks_is_accepted(server: Server) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY.ljust(10_000))
    with connect(server) as connection:
        connection.sendall(CHUNKED + chunks + b"0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_trailers_do_not_become_headers(server: Server) -> None:
    with connect(server) as connection:
        chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
        connection.sendall(CHUNKED + chunk + b"0\r\nX-Request-Id: of-a-trailer\r\n\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"of-a-trailer" not in answer


@pytest.mark.parametrize("sent", [b"", b"\r\n"], ids=["nothing", "an empty line"])
@pytest.mark.parametrize("before", [b"", WHOLE], ids=["new", "used"])
def test_idle_connection_is_closed_without_a_response(short_idle_server: Server, before: bytes, sent: bytes) -> None:
    with connect(short_idle_server) as connection:
        if before:
            connection.sendall(before)
            assert next_status(connection) == 200
        connection.sendall(sent)
        assert connection.recv(65536) == b""


def test_connection_counts_as_idle_if_a_request_was_answered_before_its_last_byte(
    light_versions: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("front front-0123456789abcdef\n")
    with (
        serving(light_versions, "--poll-seconds", "600", "--api-keys", str(keys), prelude=SHORT_IDLE_TIME) as server,
        connect(server) as connection,
    ):
        connection.sendall(HEAD + b"\r\n")
        assert next_status(connection) == 401
        connection.sendall(BODY)
        assert connection.recv(65536) == b""


# Pipelining: a client sends further requests before it has received the answers to its earlier requests.


@pytest.mark.parametrize("half", [HEAD, HEAD + b"\r\n", HEAD + b"\r\n" + BODY[:5]], ids=["head", "no body", "half"])
def test_incomplete_second_request_closes_the_connection_after_its_time_limit(server: Server, half: bytes) -> None:
    assert statuses(received_for(server, WHOLE + half)) == [200, 408]


def test_request_does_not_time_out_while_the_server_computes_a_slow_answer(slow_server: Server) -> None:
    with connect(slow_server) as connection:
        connection.sendall(WHOLE)
        while not select.select([connection], [], [], 0.05)[0]:
            connection.sendall(b"\r\n")  # an empty line is not the start of a request
        assert next_status(connection) == 200


@pytest.mark.parametrize(
    "wrong",
    [
        b"hello\r\n\r\n",
        HEAD + b"X-Long: " + b"x" * 100_000,
        HEAD,
        HEAD + b"\r\n",
        WHOLE + b"hello\r\n\r\n",
        CHUNKED + b"hello",
    ],
    ids=["no HTTP", "endless head", "half a head", "no body", "third", "no chunk"],
)
def test_error_response_is_not_sent_before_an_earlier_answer(slow_server: Server, wrong: bytes) -> None:
    received = received_for(slow_server, WHOLE + wrong)
    assert statuses(received) == [200] * (WHOLE + wrong).count(WHOLE)
    assert b"connection: close" in received


def test_requests_that_follow_a_refused_request_are_ignored(slow_server: Server, server: Server) -> None:
    long = HEAD + b"X-Long: " + b"x" * 40_000 + b"\r\n\r\n" + BODY
    assert statuses(received_for(server, long + WHOLE)) == [431]
    assert statuses(received_for(slow_server, WHOLE + long + WHOLE)) == [200]


def test_request_does_not_time_out_while_the_server_has_stopped_reading(slow_server: Server) -> None:
    size = 900_000
    large = HEAD.replace(b"Length: %d" % len(BODY), b"Length: %d" % size) + b"\r\n" + BODY.ljust(size)
    with connect(slow_server) as connection:
        connection.sendall(WHOLE + large)
        received = b""
        while len(statuses(received)) < 2:
            chunk = connection.recv(65536)
            assert chunk, received
            received += chunk
    assert statuses(received) == [200, 200]


def test_connection_with_too_many_unanswered_requests_is_closed_after_the_answers(slow_server: Server) -> None:
    quick = WHOLE.replace(b"bread", b"flour")
    received = received_for(slow_server, WHOLE + quick * 1_000)
    # Number of accepted requests: the request in progress, and the requests that may wait.
    assert statuses(received) == [200] * (1 + protocol._MAX_PIPELINED)
    assert received.count(b"connection: close") == 1


def test_waiting_request_does_not_get_the_headers_of_a_refused_request(slow_server: Server) -> None:
    quick = WHOLE.replace(b"bread", b"flour")
    refused = quick.replace(b"\r\n", b"\r\nX-Request-Id: of-the-refused-request\r\n", 1)
    received = received_for(slow_server, WHOLE + quick * protocol._MAX_PIPELINED + refused)
    assert statuses(received) == [200] * (1 + protocol._MAX_PIPELINED)
    assert b"of-the-refused-request" not in received


def peak_memory_mb(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kilobytes) >> 10


def test_client_that_reads_no_answers_cannot_send_an_unlimited_number_of_requests(server: Server) -> None:
    assert still_answers(server)
    before = peak_memory_mb(server)
    # Without the limit, these 11 MB of requests make the server use 700 MB.
    with connect(server) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 300_000)
    assert still_answers(server)
    assert peak_memory_mb(server) - before < 100


def test_service_answers_while_thousands_of_idle_connections_are_open(server: Server) -> None:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    idle = [connect(server) for _ in range(min(2_000, limit // 4))]
    try:
        assert still_answers(server)
    finally:
        for connection in idle:
            connection.close()


class RecordingTransport(asyncio.Transport):
    """A transport that records whether the protocol pauses reading or closes the connection."""

    stopped = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        pass

    def pause_reading(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.stopped = True

    def is_closing(self) -> bool:
        return self.stopped

    def get_write_buffer_size(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("kind", "limited"),
    [
        (HttpToolsProtocol, False),
        (functools.partial(protocol.BoundedProtocol, open_connections=Connections(1, None)), True),
    ],
    ids=["plain", "bounded"],
)
def test_plain_uvicorn_has_no_limit_on_heads(kind: Callable[..., HttpToolsProtocol], limited: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def send_endless_head() -> bool:
        transport = RecordingTransport()
        connection = kind(uvicorn.Config(app), ServerState(), {})
        connection.connection_made(transport)
        connection.data_received(b"GET / HTTP/1.1\r\n")
        for _ in range(100):
            if not transport.stopped:
                connection.data_received(b"X: y\r\n" * 1_000)
        stopped = transport.stopped
        connection.connection_lost(None)
        return stopped

    assert asyncio.run(send_endless_head()) is limited
