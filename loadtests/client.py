"""A minimal HTTP client for load tests, with one persistent connection.

A call blocks until the answer arrives, so a load uses many threads. Under Locust, these threads are greenlets, because
Locust replaces Python's sockets and threads.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import NamedTuple

_END_OF_HEAD = b"\r\n\r\n"


class Address(NamedTuple):
    host: str
    port: int


class LostRequestError(Exception):
    """A request got no complete answer: the connection was refused or closed, or the time limit passed."""


@dataclass(frozen=True)
class Reply:
    """An answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def version(self) -> str:
        return self.headers.get("x-index-version", "")


class Connection:
    """A connection that opens on first use and stays open. If the server closes it, the next request opens it again."""

    def __init__(self, address: Address, timeout_seconds: float = 30.0, api_key: str = "") -> None:
        self._address, self._timeout_seconds = address, timeout_seconds
        self._headers = f"Host: {address.host}\r\n" + (f"X-API-Key: {api_key}\r\n" if api_key else "")
        self._socket: socket.socket | None = None

    def post(self, path: str, body: bytes) -> Reply:
        """Post JSON.

        Raises:
            LostRequestError: If there is no complete answer.
        """
        return self._exchange(
            f"POST {path} HTTP/1.1\r\n{self._headers}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def get(self, path: str) -> Reply:
        """Get a path.

        Raises:
            LostRequestError: If there is no complete answer.
        """
        return self._exchange(f"GET {path} HTTP/1.1\r\n{self._headers}\r\n".encode())

    def close(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None

    def _exchange(self, message: bytes) -> Reply:
        reused = self._socket is not None
        try:
            head = self._send(message)
            if not head and reused:  # the server closed the idle connection before it read the request
                self.close()
                head = self._send(message)
            if not head:
                raise LostRequestError("the server closed the connection without an answer")
            return self._read(head)
        except OSError as error:
            self.close()
            raise LostRequestError(error.strerror or type(error).__name__) from None
        except LostRequestError:
            self.close()
            raise

    def _send(self, message: bytes) -> bytes:
        """Send a message and return the first bytes of the answer; empty if the server closed the connection."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout_seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(message)
            return self._socket.recv(1 << 16)
        except (ConnectionResetError, BrokenPipeError):
            return b""

    def _read(self, received: bytes) -> Reply:
        while _END_OF_HEAD not in received:
            received += self._receive()
        head, _, body = received.partition(_END_OF_HEAD)
        status, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if "content-length" not in headers:
            raise LostRequestError("the answer has no Content-Length")
        while len(body) < int(headers["content-length"]):
            body += self._receive()
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Reply(int(status.split(" ", 2)[1]), headers, body)

    def _receive(self) -> bytes:
        assert self._socket is not None
        if not (chunk := self._socket.recv(1 << 16)):
            raise LostRequestError("the server closed the connection within an answer")
        return chunk
