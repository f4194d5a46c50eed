"""What a connection may cost: bytes of a head, seconds of a body, a while of silence; and who is answered what."""

from __future__ import annotations

import json
import re
import resource
import select
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.http_helpers import PATIENCE_SECONDS, Server, serving

BODY = b'{"query": "bread"}'
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)
WHOLE = HEAD + b"\r\n" + BODY
CHUNKED = HEAD.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"
IMPATIENT = "from service.process import protocol\nprotocol._REQUEST_SECONDS = 0.3\n"
BRIEF = "from service.process import worker\nworker._KEEP_ALIVE_SECONDS = 1\n"
# Answers take far longer than requests may.
SLOW = f"""{IMPATIENT}
import time
from service.predictor import predictor
answer = predictor.Predictor.predict_together
def slowly(self, requests):
    if any("bread" in queries for queries, _ in requests):
        time.sleep(1)
    return answer(self, requests)
predictor.Predictor.predict_together = slowly
"""


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", prelude=IMPATIENT) as server:
        yield server


@pytest.fixture(scope="module")
def brief_server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", prelude=BRIEF) as server:
        yield server


@pytest.fixture(scope="module")
def slow_server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", "--cache-mb", "0", prelude=SLOW) as server:
        yield server


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def next_status(connection: socket.socket) -> int:
    """The status of the next answer, which is read to its end."""
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def received_for(server: Server, *parts: bytes) -> bytes:
    """All that bytes are answered with before the server hangs up."""
    with connect(server) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def answer_to(server: Server, *parts: bytes) -> tuple[bytes, dict[str, Any]]:
    """The status line, and the problem, that bytes are answered with before the server hangs up."""
    head, _, body = received_for(server, *parts).partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert re.search(rb"\r\nX-Request-Id: [0-9a-f]{32}\r\n", head)
    return head.split(b"\r\n")[0], json.loads(body)


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def is_refused(server: Server, sent: bytes, status: int, code: str) -> None:
    line, problem = answer_to(server, sent)
    assert line.startswith(b"HTTP/1.1 %d " % status)
    assert problem["code"] == code


def still_answers(server: Server) -> bool:
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
def test_an_endless_head_is_refused(server: Server, head: bytes) -> None:
    is_refused(server, head, 431, "head_too_large")
    assert still_answers(server)


@pytest.mark.parametrize(
    "half",
    [b"POST /pre", HEAD, HEAD + b"\r\n", HEAD + b"\r\n" + BODY[:5]],
    ids=["line", "head", "no body", "half a body"],
)
def test_half_a_request_is_given_up(server: Server, half: bytes) -> None:
    is_refused(server, half, 408, "request_timeout")
    assert still_answers(server)


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), b"hello\r\n\r\n"])
def test_what_is_no_http_is_refused(server: Server, noise: bytes) -> None:
    is_refused(server, noise, 400, "invalid_http")


def test_slow_bytes_are_read_while_they_come_in_time(server: Server) -> None:
    with connect(server) as connection:
        for byte in HEAD + b"\r\n" + BODY:
            connection.sendall(bytes([byte]))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "lines",
    [b"0\r\nX-Long: " + b"x" * 40_000, b"0\r\n" + b"X: y\r\n" * 8_000, b"1;" + b"x" * 40_000],
    ids=["endless trailer", "many trailers", "endless chunk extension"],
)
def test_endless_lines_after_a_head_are_refused(brief_server: Server, lines: bytes) -> None:
    with connect(brief_server) as connection:
        connection.sendall(CHUNKED.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(lines)
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")
    assert still_answers(brief_server)


def test_a_body_in_many_small_chunks_is_no_endless_head(server: Server) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY.ljust(10_000))
    with connect(server) as connection:
        connection.sendall(CHUNKED + chunks + b"0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_trailers_are_no_headers(server: Server) -> None:
    with connect(server) as connection:
        chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
        connection.sendall(CHUNKED + chunk + b"0\r\nX-Request-Id: of-a-trailer\r\n\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"of-a-trailer" not in answer


@pytest.mark.parametrize("said", [b"", b"\r\n"], ids=["nothing", "an empty line"])
@pytest.mark.parametrize("before", [b"", WHOLE], ids=["new", "kept"])
def test_an_idle_connection_is_closed_without_a_word(brief_server: Server, before: bytes, said: bytes) -> None:
    with connect(brief_server) as connection:
        if before:
            connection.sendall(before)
            assert next_status(connection) == 200
        connection.sendall(said)
        assert connection.recv(65536) == b""


def test_a_request_answered_before_its_end_leaves_an_idle_connection(light_versions: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("front front-0123456789abcdef\n")
    with (
        serving(light_versions, "--poll-seconds", "600", "--api-keys", str(keys), prelude=BRIEF) as guarded,
        connect(guarded) as connection,
    ):
        connection.sendall(HEAD + b"\r\n")
        assert next_status(connection) == 401
        connection.sendall(BODY)
        assert connection.recv(65536) == b""


# Requests sent before the answers to earlier ones.


@pytest.mark.parametrize("half", [HEAD, HEAD + b"\r\n", HEAD + b"\r\n" + BODY[:5]], ids=["head", "no body", "half"])
def test_half_a_second_request_is_given_up(server: Server, half: bytes) -> None:
    assert statuses(received_for(server, WHOLE + half)) == [200, 408]


def test_a_slow_answer_is_not_given_up(slow_server: Server) -> None:
    with connect(slow_server) as connection:
        connection.sendall(WHOLE)
        while not select.select([connection], [], [], 0.05)[0]:
            connection.sendall(b"\r\n")  # which begins no request
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
def test_no_refusal_is_taken_for_the_answer_to_an_earlier_request(slow_server: Server, wrong: bytes) -> None:
    received = received_for(slow_server, WHOLE + wrong)
    assert statuses(received) == [200] * (WHOLE + wrong).count(WHOLE)
    assert b"connection: close" in received


def test_what_follows_a_refused_request_is_not_begun(slow_server: Server, server: Server) -> None:
    long = HEAD + b"X-Long: " + b"x" * 40_000 + b"\r\n\r\n" + BODY
    assert statuses(received_for(server, long + WHOLE)) == [431]
    assert statuses(received_for(slow_server, WHOLE + long + WHOLE)) == [200]


def test_a_client_that_the_server_keeps_waiting_is_not_given_up(slow_server: Server) -> None:
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


def test_thousands_of_idle_connections_keep_nobody_from_an_answer(server: Server) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    idle = [connect(server) for _ in range(min(2_000, most // 4))]
    try:
        assert still_answers(server)
    finally:
        for connection in idle:
            connection.close()
