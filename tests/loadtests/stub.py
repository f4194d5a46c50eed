"""A stub of the service. A test chooses its answers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from loadtests.load import Address


class StubAnswer(NamedTuple):
    """An answer of the stub. With status 0, the stub closes the connection without an answer."""

    status: int
    body: Any
    headers: dict[str, str] = {}


@contextlib.contextmanager
def stub(answer: Callable[[dict[str, Any]], StubAnswer]) -> Iterator[Address]:
    """Run a real HTTP server that answers POST requests with `answer`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            chosen = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if not chosen.status:
                self.close_connection = True
                return
            body = json.dumps(chosen.body).encode()
            self.send_response(chosen.status)
            for name, value in {"Content-Length": str(len(body)), **chosen.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
