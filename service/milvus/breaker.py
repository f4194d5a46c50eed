"""A circuit breaker: while Milvus does not answer, calls fail at once instead of waiting.

The breaker opens after a call that could not reach Milvus, whose token Milvus refuses, or which needs a collection that
is not loaded, and after several failed calls in a row. A thread then asks Milvus every second. The breaker closes when
Milvus answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

import structlog

log = structlog.get_logger(__name__)

# Why a call failed. `unauthenticated`: Milvus refuses the token. `wrong_call`: Milvus refuses the call's arguments.
# `refused`: another error of Milvus.
Failure = Literal["unreachable", "unauthenticated", "timeout", "not_loaded", "wrong_call", "refused"]

# These failures open the breaker at once. Of other failures, this number in a row opens it.
_AT_ONCE, _FAILED_CALLS = ("unreachable", "unauthenticated", "not_loaded"), 3
_PROBE_SECONDS = 1.0


class Breaker:
    """A circuit breaker; thread-safe.

    Args:
        name: The address of Milvus, for the log.
        answers: Asks Milvus the calls that an answer needs, and returns whether it answers.

    Attributes:
        problem: The reason why calls fail at once; None while the breaker is closed.
    """

    def __init__(self, name: str, answers: Callable[[], bool]) -> None:
        self.problem: str | None = None
        self._name, self._answers, self._failures = name, answers, 0
        self._lock, self._closed = threading.Lock(), threading.Event()

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, problem: str, failure: Failure) -> None:
        """Count a failed call, and open the breaker if Milvus does not answer, or several calls in a row failed."""
        if failure == "wrong_call":
            return
        with self._lock:
            self._failures += 1
            is_open = self.problem is not None or self._closed.is_set()
            if is_open or not (failure in _AT_ONCE or self._failures >= _FAILED_CALLS):
                return
            self.problem = problem
        log.warning("engine_down", why=problem)
        threading.Thread(target=self._probe, name="engine-probe", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether `close` was called."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """Stop asking Milvus."""
        self._closed.set()

    def _probe(self) -> None:
        since = time.monotonic()
        while not self._closed.wait(_PROBE_SECONDS):
            if self._answers():
                with self._lock:
                    self._failures, self.problem = 0, None
                log.info("engine_up", engine=self._name, seconds=round(time.monotonic() - since, 1))
                return
