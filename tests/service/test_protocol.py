"""What a connection may cost before it is a request: bytes of a head, seconds of a body, and nothing else."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.http_helpers import PATIENCE_SECONDS, Server, serving

BODY = b'{"query": "bread"}'
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)
IMPATIENT = "from service import protocol\nprotocol._REQUEST_SECONDS = 0.3\n"


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", prelude=IMPATIENT) as server:
        yield server


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def answer_to(server: Server, *parts: bytes) -> tuple[bytes, dict[str, Any]]:
    """The status line, and the problem, that bytes are answered with before the server hangs up."""
    with connect(server) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return head.split(b"\r\n")[0], json.loads(body)


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
    status, problem = answer_to(server, head)
    assert status.startswith(b"HTTP/1.1 431 ")
    assert problem["code"] == "head_too_large"
    assert still_answers(server)


@pytest.mark.parametrize(
    "half",
    [b"POST /pre", HEAD, HEAD + b"\r\n", HEAD + b"\r\n" + BODY[:5]],
    ids=["line", "head", "no body", "half a body"],
)
def test_half_a_request_is_given_up(server: Server, half: bytes) -> None:
    status, problem = answer_to(server, half)
    assert status.startswith(b"HTTP/1.1 408 ")
    assert problem["code"] == "request_timeout"
    assert still_answers(server)


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), b"hello\r\n\r\n"])
def test_what_is_no_http_is_refused(server: Server, noise: bytes) -> None:
    status, problem = answer_to(server, noise)
    assert status.startswith(b"HTTP/1.1 400 ")
    assert problem["code"] == "invalid_http"


def test_slow_bytes_are_read_while_they_come_in_time(server: Server) -> None:
    with connect(server) as connection:
        for byte in HEAD + b"\r\n" + BODY:
            connection.sendall(bytes([byte]))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_thousands_of_idle_connections_keep_nobody_from_an_answer(server: Server) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    idle = [connect(server) for _ in range(min(2_000, most // 4))]
    try:
        assert still_answers(server)
    finally:
        for connection in idle:
            connection.close()
