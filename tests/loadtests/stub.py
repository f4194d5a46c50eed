"""A stub of the service. A test chooses its answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from loadtests.load import Address
from tests import web


class StubAnswer(NamedTuple):
    """An answer of the stub. With status 0, the stub closes the connection without an answer."""

    status: int
    body: Any
    headers: dict[str, str] = {}


@contextlib.contextmanager
def stub(answer: Callable[[dict[str, Any]], StubAnswer]) -> Iterator[Address]:
    """Run a real HTTP server that answers POST requests with `answer`."""

    class Handler(web.Handler):
        def do_POST(self) -> None:  # noqa: N802
            chosen = answer(json.loads(self.body()))
            if chosen.status:
                self.answer(chosen.status, json.dumps(chosen.body).encode(), chosen.headers)
            else:
                self.close_connection = True

    with web.answering(Handler) as port:
        yield Address("127.0.0.1", port)
