"""Calls of OpenAI's route `/embeddings`: one request, its response as vectors, and the reasons of failures."""

from __future__ import annotations

import http.client
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from pydantic import SecretStr
from pydantic_core import from_json, to_json

from recollect.core.settings import EncoderAddress
from recollect.core.system.console import printable
from recollect.extras.encoder_server.posts import REASON_CHARACTERS, Posts, Response

# Maximum size of a response: a constant, and for each text.
_MAX_BYTES, _MAX_BYTES_PER_TEXT = 1 << 20, 1 << 20
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


class Calls:
    """Asks one address for vectors; thread-safe."""

    def __init__(self, address: EncoderAddress, token: SecretStr | None) -> None:
        self._model, self._posts = address.model, Posts(f"{address.url}/embeddings", token)

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
            response = self._posts.post(content, deadline, limit)
        except (OSError, http.client.HTTPException) as error:
            late = isinstance(error, TimeoutError)
            raise FailedCallError(
                f"expected the server of vectors to answer, found: {'no answer in time' if late else 'no connection'}; "
                "check its address, or try again shortly",
                reason="" if late else printable(str(error) or repr(error))[:REASON_CHARACTERS],
                repeat=True,
                answered=False,
            ) from None
        if response.status == 200:
            return _vectors(response.body, limit, len(texts), dim)
        raise self._failure(response)

    def _failure(self, response: Response) -> Exception:
        status, reason = response.status, self._posts.reason(response.body)
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
