"""A throttle for background work: opening the next version must not slow down the answers to requests.

The throttle adapts to the measured load: the share of the computing threads that are busy. Background work calls
`pause` after each step. `pause` rests in proportion to the load and to the CPU time of the step, and then waits for a
moment at which a computing thread is idle.

A thread with low priority would not help. If the system suspends such a thread while it holds Python's global lock, all
other threads wait. On a busy machine, such a thread also takes several times as long to open a version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# While all computing threads are busy, background work rests this number of seconds for each second of CPU time.
_REST_FACTOR = 4.0
# Shorter steps are counted together. Their pauses would cost more than the steps.
_SHORTEST_STEP_SECONDS = 0.001
# After its rest, background work waits at most this long for an idle thread, so that it also ends under full load.
_MAX_IDLE_WAIT_SECONDS, _POLL_SECONDS = 0.02, 0.002


class CancelledWorkError(Exception):
    """Raised when the background work is no longer needed."""


class Throttle:
    """Slows down the background work of one thread while other threads compute answers.

    Create the throttle in the thread of the background work.

    Args:
        load: Function that returns the share of the computing threads that are busy at the moment, from 0 to 1.
        cancelled: Event that is set when the work is no longer needed.
    """

    def __init__(self, load: Callable[[], float], cancelled: threading.Event) -> None:
        self._load, self._cancelled = load, cancelled
        self._step_start = time.thread_time()

    def pause(self) -> None:
        """End a step of the work.

        Raises:
            CancelledWorkError: Once `cancelled` is set.
        """
        step_seconds = time.thread_time() - self._step_start
        if step_seconds < _SHORTEST_STEP_SECONDS:
            self._wait(0.0)
            return
        self._wait(_REST_FACTOR * self._load() * step_seconds)
        for _ in range(round(_MAX_IDLE_WAIT_SECONDS / _POLL_SECONDS)):
            if self._load() < 1:
                break
            self._wait(_POLL_SECONDS)
        self._step_start = time.thread_time()

    def _wait(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise CancelledWorkError
