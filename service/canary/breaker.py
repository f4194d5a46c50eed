"""A circuit breaker: stops the canary if it fails more often or answers more slowly than the current version.

It compares the last answers of the canary with the answers of the current version in about the same time. Both versions
share the queue and the threads, so an overload slows down both and does not stop the canary.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

# Maximum number of answers of the current version that are compared.
_MAX_CURRENT = 10_000
# Latencies are compared once for this part of the window, because sorting them for every answer would take long.
_CHECKS_PER_WINDOW = 10
# If the current version has errors too, the error rate of the canary varies by chance; this many standard errors of it
# do not count.
_STANDARD_ERRORS = 4.0
_QUANTILES = (("median", 0.5), ("95th percentile", 0.95))


@dataclass(frozen=True)
class BreakerLimits:
    """When a canary is stopped.

    Attributes:
        window: Number of the last answers of the canary that are judged together.
        max_errors: Maximum difference between the error rate of the canary and that of the current version.
        max_slowdown: Maximum ratio between the latency of the canary and that of the current version, for the median
            and for the 95th percentile.
    """

    window: int = 100
    max_errors: float = 0.02
    max_slowdown: float = 2.0


class CircuitBreaker:
    """Judges a canary by its answers.

    One thread records all answers. Any thread may stop the canary and read the reason.

    Args:
        limits: When the canary is stopped.
        share: The share of the requests that the canary answers. It determines how many answers of the current version
            belong to the same time.

    Attributes:
        stopped: The reason why the canary is stopped; None while it is not.
    """

    def __init__(self, limits: BreakerLimits, share: float) -> None:
        self._limits = limits
        self._canary: deque[float | None] = deque(maxlen=limits.window)
        same_time = math.ceil(limits.window * (1 - share) / share)
        self._current: deque[float | None] = deque(maxlen=max(limits.window, min(same_time, _MAX_CURRENT)))
        self._since_check = 0
        self.stopped: str | None = None

    def record_current(self, seconds: float | None) -> None:
        """Record an answer of the current version and its latency; None stands for an error."""
        self._current.append(seconds)

    def record_canary(self, seconds: float | None) -> None:
        """Record an answer of the canary and its latency, and stop the canary if it exceeds a limit."""
        self._canary.append(seconds)
        self._since_check += 1
        if self.stopped is not None:
            return
        if seconds is None:
            self.stopped = self._too_many_errors()
        elif self._since_check >= self._limits.window / _CHECKS_PER_WINDOW and len(self._canary) == self._limits.window:
            self._since_check = 0
            self.stopped = self._too_slow()

    def stop(self, reason: str) -> None:
        """Stop the canary, because another replica has stopped it."""
        self.stopped = self.stopped or reason

    def _too_many_errors(self) -> str | None:
        """Judge the error rate.

        If the window is not full yet, the missing answers count as good. So the canary is stopped at once when its
        errors exceed the limit for a full window.
        """
        canary = self._canary.count(None) / self._limits.window
        current = self._current.count(None) / len(self._current) if self._current else 0.0
        by_chance = _STANDARD_ERRORS * math.sqrt(current * (1 - current) / self._limits.window)
        if canary <= current + self._limits.max_errors + by_chance:
            return None
        return (
            f"{self._canary.count(None)} of its last {len(self._canary)} requests failed, and {current:.1%} of the "
            "current version's requests"
        )

    def _too_slow(self) -> str | None:
        canary, current = _sorted_latencies(self._canary), _sorted_latencies(self._current)
        if len(current) < self._limits.window or not canary:
            return None
        for name, quantile in _QUANTILES:
            found, expected = _quantile(canary, quantile), _quantile(current, quantile)
            if found > self._limits.max_slowdown * expected:
                return (
                    f"the {name} of its latency is {1e3 * found:.1f} ms, and {1e3 * expected:.1f} ms for the current "
                    "version"
                )
        return None


def _sorted_latencies(answers: deque[float | None]) -> list[float]:
    return sorted(seconds for seconds in answers if seconds is not None)


def _quantile(values: list[float], quantile: float) -> float:
    """The smallest of the sorted values with at least this share of the values at or below it."""
    return values[max(0, math.ceil(quantile * len(values)) - 1)]
