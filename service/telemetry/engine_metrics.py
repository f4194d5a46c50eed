"""Metrics of the calls of Milvus."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram


@dataclass(frozen=True, eq=False)
class EngineMetrics:
    """Metrics of the calls of Milvus.

    Attributes:
        up: 1 while Milvus answers.
        seconds: Time of each call that Milvus answered.
        errors: Number of calls that failed.
    """

    up: Gauge
    seconds: Histogram
    errors: Counter

    def __post_init__(self) -> None:
        self.up.set(1)
        for method in ("search", "query"):  # starts at 0, so that Prometheus sees the first increase
            self.seconds.labels(method)
            for reason in ("unreachable", "unauthenticated", "timeout", "not_loaded", "refused"):
                self.errors.labels(method, reason)

    def __call__(self, method: str, seconds: float, reason: str | None) -> None:
        """Count a call; `reason` says why it failed, and is None if Milvus answered."""
        if reason is None:
            self.seconds.labels(method).observe(seconds)
        else:
            self.errors.labels(method, reason).inc()
