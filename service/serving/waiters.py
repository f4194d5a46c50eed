"""Limits how many requests wait for the same thing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from recollect.core.errors import OverloadError


class Waiters:
    """Counts the requests that wait for a thing, or use it."""

    def __init__(self, limit: int, thing: str) -> None:
        self._limit, self._thing, self._count = limit, thing, 0

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a request while it waits. Raise `OverloadError` if too many requests wait already."""
        if self._count >= self._limit:
            raise OverloadError(f"{self._count} requests wait for {self._thing}; retry shortly")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
