"""Calls of OpenAI's route `/embeddings`: one request, its response as vectors, and the reasons of failures.

Redirects are not followed, so the token is sent to no other address than that of the settings.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Float
from pydantic import SecretStr
from pydantic_core import from_json, to_json

from recollect.core.settings import EncoderAddress
from recollect.core.system.console import printable

# Maximum size of a response: a constant, and for each text.
_MAX_BYTES, _MAX_BYTES_PER_TEXT = 1 << 20, 1 << 20
_REASON_CHARACTERS = 200
# Statuses of a server that refuses the texts, and of one that has too much to do.
_REFUSED, _BUSY = (400, 413, 422), (408, 425, 429)


class FailedCallError(Exception):
    """A call without vectors. The message is for clients, too: it has no address, and nothing that the server wrote.

    Attributes:
        reason: What the server wrote, or the error of the connection; empty if there is neither.
        repeat: Whether the same call may succeed later.
        answered: Whether the server answered.
        is_down: Whether other calls may fail too.
        pause: Seconds that the server asks to wait; 0 if it asks for none.
    """

    def __init__(
        self,
        message: str,
        reason: str = "",
        repeat: bool = False,
        answered: bool = True,
        is_down: bool = True,
        pause: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.reason, self.repeat, self.answered, self.is_down = reason, repeat, answered, is_down
        self.pause = pause

    @property
    def for_operator(self) -> str:
        """The message with the reason."""
        return f"{self} ({self.reason})" if self.reason else str(self)


class RefusedTextsError(Exception):
    """The server refuses the texts of a call, for example because one is too long, or because they are too many."""


class _Response(NamedTuple):
    status: int
    pause: float  # the header Retry-After, in seconds
    body: bytes


class Calls:
    """Sends requests to one address, and keeps idle connections; thread-safe."""

    def __init__(self, address: EncoderAddress, token: SecretStr | None) -> None:
        parts = urlsplit(address.url)
        self._model, self._token = address.model, token
        self._host, self._port, self._path = parts.hostname or "", parts.port, f"{parts.path}/embeddings"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def ask(self, texts: Sequence[str], deadline: float, dim: int | None) -> Float[np.ndarray, "text dim"]:
        """The vectors of some texts.

        Args:
            deadline: The time of `time.monotonic` at which the call fails.
            dim: The expected dimension; None accepts any.

        Raises:
            FailedCallError: If the server does not answer, or not with such vectors.
            RefusedTextsError: If it refuses the texts.
        """
        content = to_json({"model": self._model, "input": list(texts), "encoding_format": "float"})
        limit = _MAX_BYTES + _MAX_BYTES_PER_TEXT * len(texts)
        try:
            response = self._post(content, deadline, limit)
        except (OSError, http.client.HTTPException) as error:
            late = isinstance(error, TimeoutError)
            raise FailedCallError(
                f"expected the server of vectors to answer, found: {'no answer in time' if late else 'no connection'}; "
                "check its address, or try again shortly",
                reason="" if late else printable(str(error) or repr(error))[:_REASON_CHARACTERS],
                repeat=True,
                answered=False,
            ) from None
        if response.status == 200:
            return _vectors(response.body, limit, len(texts), dim)
        raise self._failure(response)

    def _failure(self, response: _Response) -> Exception:
        status, reason = response.status, self._reason(response.body)
        found = f"status {status}"
        if status in _REFUSED:
            return RefusedTextsError(found + (f": {reason}" if reason else ""))
        if status in (401, 403):
            return FailedCallError(
                f"expected the server of vectors to accept the token, found {found}; set RECOLLECT_ENCODER_TOKEN",
                reason,
            )
        if status in _BUSY or status >= 500:
            return FailedCallError(
                f"expected vectors, found {found}; try again shortly",
                reason,
                repeat=True,
                is_down=status not in _BUSY,
                pause=response.pause,
            )
        return FailedCallError(
            f"expected the route /embeddings and the model {self._model}, found {found}; check the address and the "
            "model (redirects are not followed)",
            reason,
        )

    def _post(self, content: bytes, deadline: float, limit: int) -> _Response:
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
        return _Response(response.status, pause, bytes(body))

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

    def _reason(self, body: bytes) -> str:
        """The message in the body of an error, without the token, which some servers repeat."""
        try:
            found: Any = from_json(body)
            for name in ("error", "message", "detail"):
                found = found.get(name, found) if isinstance(found, dict) else found
        except ValueError:
            found = body[: 10 * _REASON_CHARACTERS].decode(errors="replace")
        text = " ".join(str(found).split())
        if self._token is not None:
            text = text.replace(self._token.get_secret_value(), "...")
        return printable(text)[:_REASON_CHARACTERS]


def _vectors(body: bytes, limit: int, texts: int, dim: int | None) -> Float[np.ndarray, "text dim"]:
    """Read a response: an object whose list `data` has an `embedding` for each text, and its `index`."""
    try:
        if len(body) > limit:
            raise ValueError(f"more than {limit:,} bytes")
        data = from_json(body)["data"]
        rows = sorted(data, key=lambda row: row["index"]) if all("index" in row for row in data) else data
        vectors = np.array([row["embedding"] for row in rows], dtype=np.float32)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise FailedCallError(
            "expected the response of OpenAI's route /embeddings, found another one; check the address",
            repr(str(error)[:80]),
        ) from None
    if vectors.ndim != 2 or vectors.shape[0] != texts or vectors.shape[1] == 0:
        raise FailedCallError(
            f"expected {texts} vectors, found an array of the shape {vectors.shape}; check the address"
        )
    if dim is not None and vectors.shape[1] != dim:
        raise FailedCallError(
            f"expected vectors of {dim} dimensions, found {vectors.shape[1]}; serve the model of the version"
        )
    if not np.isfinite(vectors).all() or not vectors.any(axis=1).all():
        raise FailedCallError("expected finite vectors that are not 0, found others; serve another model")
    return vectors


def _seconds_until(deadline: float) -> float:
    if (seconds := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return seconds


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()
