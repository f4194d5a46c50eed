"""POST requests of JSON to one address, over idle connections, until a deadline.

Redirects are not followed, so the token is sent to no other address than that of the settings.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
import weakref
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import SecretStr
from pydantic_core import from_json

from recollect.core.system.console import printable

REASON_CHARACTERS = 200


class Response(NamedTuple):
    status: int
    pause: float  # the header Retry-After, in seconds
    body: bytes


class Posts:
    """Sends requests to one address, and keeps idle connections; thread-safe."""

    def __init__(self, url: str, token: SecretStr | None) -> None:
        parts = urlsplit(url)
        self._token = token
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path or "/"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def post(self, content: bytes, deadline: float, limit: int) -> Response:
        """Send a request, and read at most `limit` + 1 bytes of the body of its response."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        while True:
            connection, is_new = self._connection(deadline)
            try:
                connection.request("POST", self._path, content, headers)
                response = connection.getresponse()
                break
            except BaseException as error:
                connection.close()
                if is_new or not isinstance(error, ConnectionError | http.client.BadStatusLine):
                    raise  # otherwise the server has closed the idle connection: take the next one, or a new one
        try:
            body = bytearray()
            while len(body) <= limit and (piece := response.read1(limit + 1 - len(body))):
                body += piece
                if connection.sock is not None:
                    connection.sock.settimeout(_seconds_until(deadline))
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and not response.will_close:
            self._idle.append(connection)
        else:
            connection.close()
        pause = 0.0
        with contextlib.suppress(ValueError):  # a date
            pause = max(0.0, float(response.headers.get("Retry-After") or 0))
        return Response(response.status, pause, bytes(body))

    def _connection(self, deadline: float) -> tuple[http.client.HTTPConnection, bool]:
        """An idle connection, or a new one, and whether it is new."""
        seconds = _seconds_until(deadline)
        with contextlib.suppress(IndexError):
            connection = self._idle.pop()
            if connection.sock is not None:
                connection.sock.settimeout(seconds)
                return connection, False
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=seconds), True
        return http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls), True

    def reason(self, body: bytes) -> str:
        """The message in the body of an error, without the token, which some servers repeat."""
        try:
            found: Any = from_json(body)
            for name in ("error", "message", "detail"):
                found = found.get(name, found) if isinstance(found, dict) else found
        except ValueError:
            found = body[: 10 * REASON_CHARACTERS].decode(errors="replace")
        text = " ".join(str(found).split())
        if self._token is not None:
            text = text.replace(self._token.get_secret_value(), "...")
        return printable(text)[:REASON_CHARACTERS]


def _seconds_until(deadline: float) -> float:
    if (seconds := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return seconds


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()
