"""Runs changes of the memory on threads of their own, so that the texts of a large change do not delay other requests.

Several threads, because the log writes changes that wait at the same time as one group.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from recollect.service.errors import OverloadError

# Threads that change the memory.
_THREADS = 8
# Maximum number of changes in progress, with those that wait for a thread. A further change is refused.
_MAX_CHANGES = 64

_Result = TypeVar("_Result")


class ChangeThreads:
    """The threads that change the memory. The event loop uses them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "change")
        self._changes = 0

    async def run(self, change: Callable[[], _Result]) -> _Result:
        """Run a change to its end, even if the client disconnects.

        Raises:
            OverloadError: If too many changes wait.
        """
        if self._changes >= _MAX_CHANGES:
            raise OverloadError(f"{self._changes} changes of the memory wait; retry shortly")
        context = contextvars.copy_context()  # the log context with the request's id
        self._changes += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, context.run, change)
        future.add_done_callback(self._end)
        return await asyncio.shield(future)

    def close(self) -> None:
        """Wait for the changes in progress, and drop those that wait for a thread. No dropped change was written."""
        self._threads.shutdown(cancel_futures=True)

    def _end(self, future: asyncio.Future[_Result]) -> None:
        self._changes -= 1
        if not future.cancelled():
            future.exception()  # no warning if the request has ended before the change
