"""Limits how many requests wait for the same thing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from recollect.core.errors import OverloadError


class Waiters:
    """Counts the requests that wait for a thing, or use it.

    Args:
        most: Maximum number of requests.
        what: The thing, for the message.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what, self._count = most, what, 0

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a request while it waits.

        Raises:
            OverloadError: If too many requests wait already.
        """
        if self._count >= self._most:
            raise OverloadError(f"{self._count} requests wait for {self._what}; retry shortly")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
