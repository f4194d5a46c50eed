"""Requests as bytes on a socket, for requests that an HTTP client would not send."""

from __future__ import annotations

import json
import re
import socket
from http.client import HTTPResponse
from typing import Any

from tests.service.http_helpers import PATIENCE_SECONDS, Server

BODY = b'{"query": "bread"}'
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)
WHOLE = HEAD + b"\r\n" + BODY
CHUNKED = HEAD.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def next_status(connection: socket.socket) -> int:
    """Read the next answer completely, and return its status."""
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def received_for(server: Server, *parts: bytes) -> bytes:
    """Send bytes, and return all bytes that the server sends before it closes the connection."""
    with connect(server) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def answer_to(server: Server, *parts: bytes) -> tuple[bytes, dict[str, Any]]:
    """Send bytes; return the status line and the problem that the server sends before it closes the connection."""
    head, _, body = received_for(server, *parts).partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert re.search(rb"\r\nX-Request-Id: [0-9a-f]{32}\r\n", head)
    return head.split(b"\r\n")[0], json.loads(body)


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def assert_refused(server: Server, sent: bytes, status: int, code: str) -> None:
    line, problem = answer_to(server, sent)
    assert line.startswith(b"HTTP/1.1 %d " % status)
    assert problem["code"] == code
