"""A throttle for background work: opening the next version must not slow down the answers to requests.

A thread with low priority would not help. If the system suspends such a thread while it holds Python's global lock, all
other threads wait. Therefore background work calls `pause` after each step, and `pause` sleeps in proportion to the
time of the step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# While requests arrive, background work sleeps this number of seconds for each second of work.
_SLEEP_FACTOR = 9.0


class CancelledWorkError(Exception):
    """Raised when the background work is no longer needed."""


class Throttle:
    """Slows down the background work of one thread while requests arrive.

    Args:
        busy: Function that returns whether requests arrive at the moment.
        cancelled: Event that is set when the work is no longer needed.
    """

    def __init__(self, busy: Callable[[], bool], cancelled: threading.Event) -> None:
        self._busy, self._cancelled = busy, cancelled
        self._step_start = time.monotonic()

    def pause(self) -> None:
        """End a step of the work: while requests arrive, sleep nine times as long as the step took.

        Raises:
            CancelledWorkError: Once `cancelled` is set.
        """
        seconds = _SLEEP_FACTOR * (time.monotonic() - self._step_start) if self._busy() else 0.0
        if self._cancelled.wait(seconds):
            raise CancelledWorkError
        self._step_start = time.monotonic()
