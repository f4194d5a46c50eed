"""A small server with OpenAI's route `/v1/embeddings`. The vector of a text is the sum of vectors of its words."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import numpy as np

from tests import web

TOKEN, MODEL, DIM = "token-of-the-test-0123456789", "words", 48
# The server refuses longer calls and longer texts.
MOST_TEXTS, MOST_CHARACTERS = 20, 2_000
# It fails at a text with this word, and its response repeats the text.
POISON = "poison"


def vector_of(text: str, seed: str = "", dim: int = DIM) -> list[float]:
    """A vector that no other text has, near the vectors of texts with the same words."""
    vector = np.zeros(dim)
    for word in {text, *text.lower().split()}:
        digest = hashlib.sha256(f"{seed}{word}".encode()).digest()
        vector += np.random.default_rng(int.from_bytes(digest[:8])).normal(size=dim)
    return [float(each) for each in vector]


class VectorServer:
    """The server.

    Attributes:
        mode: What goes wrong: `slow`, `dimension`, `busy` (429), `failing` (500), `garbage`, `redirect`, `nan`,
            `refusing` (413 after a while); empty: nothing.
        times: Number of calls that go wrong; later ones are answered.
        seed: Another seed is another model.
        calls: Number of texts of each call.
        tokens: The tokens of all calls.
        texts: The texts that were asked for.
    """

    def __init__(self) -> None:
        self.mode, self.times, self.seed, self.port = "", 1 << 30, "", 0
        self.calls: list[int] = []
        self.texts: list[str] = []
        self.tokens: set[str | None] = set()
        self.connections = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def encoder(self) -> str:
        return f"{self.url}#{MODEL}"

    def fail(self, mode: str, times: int = 1 << 30) -> None:
        self.mode, self.times = mode, times

    def start(self) -> None:
        server = self

        class Handler(web.Handler):
            def setup(self) -> None:
                super().setup()
                server.connections += 1
                server._open.add(self.connection)

            def do_POST(self) -> None:  # noqa: N802
                status, content, headers = server._answer(self.path, self.headers, json.loads(self.body()))
                self.answer(status, content if isinstance(content, bytes) else json.dumps(content).encode(), headers)

        class Server(ThreadingHTTPServer):
            daemon_threads, block_on_close = True, False

            def handle_error(self, *_: Any) -> None:
                """The client has gone."""

        self._open: set[Any] = set()
        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._server = None

    def _answer(self, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        texts = body["input"]
        self.calls.append(len(texts))
        self.tokens.add(headers["Authorization"])
        mode = self.mode if self.times > 0 else ""
        self.times -= 1
        if mode == "redirect":
            return 307, b"", {"Location": "http://127.0.0.1:9/v1/embeddings"}
        if path != "/v1/embeddings" or body["model"] != MODEL:
            return 404, {"error": {"message": f"no model {body['model']}"}}, {}
        if headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, {"error": {"message": f"wrong key {headers['Authorization']}"}}, {}
        if len(texts) > MOST_TEXTS or max(map(len, texts)) > MOST_CHARACTERS:
            return 413, {"error": "too much"}, {}
        if any(POISON in text for text in texts):
            return 500, {"error": f"cannot read {texts}"}, {}
        if mode == "refusing":
            time.sleep(0.4)
            return 413, {"error": "too much"}, {}
        if mode == "busy":
            return 429, {"error": "slow down"}, {"Retry-After": "0.2"}
        if mode == "failing":
            return 500, {"error": "broken"}, {}
        if mode == "garbage":
            return 200, b"<html>no vectors</html>", {}
        if mode == "slow":
            time.sleep(3)
        self.texts += texts
        dim = DIM // 2 if mode == "dimension" else DIM
        data = [
            {"object": "embedding", "index": row, "embedding": vector_of(text, self.seed, dim)}
            for row, text in enumerate(texts)
        ]
        if mode == "nan":
            data[0]["embedding"][0] = float("nan")
        return 200, {"object": "list", "model": MODEL, "data": data[::-1], "usage": {}}, {}


@contextlib.contextmanager
def running_server() -> Iterator[VectorServer]:
    server = VectorServer()
    try:
        yield server
    finally:
        server.stop()
