"""What the service tells of itself: Prometheus metrics, over all workers of one service.

With several workers each writes its numbers to a file in a folder that they share, and whichever is asked adds all of
them up.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

from service.settings import SHARED_METRICS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# How the numbers of several workers become one.
OfWorkers = Literal["livesum", "livemin", "livemax"]

_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STAGE_SECONDS = (0.0001, 0.0002, 0.0005, *_SECONDS[:-2])
_SWAP_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Telemetry:
    """The metrics, and the moments at which they change.

    Args:
        with_redis: Whether there is a Redis to tell of.
    """

    def __init__(self, with_redis: bool = False) -> None:
        self._shared = SHARED_METRICS in os.environ
        self._registry = registry = CollectorRegistry()

        def counter(name: str, help_: str, *labels: str) -> Counter:
            return Counter(f"recollect_{name}", help_, labels, registry=registry)

        def gauge(name: str, help_: str, of_workers: OfWorkers, *labels: str) -> Gauge:
            return Gauge(f"recollect_{name}", help_, labels, registry=registry, multiprocess_mode=of_workers)

        def histogram(name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"recollect_{name}", help_, labels, registry=registry, buckets=buckets)

        self.requests = counter("requests_total", "Requests answered.", "path", "status")
        self.request_seconds = histogram("request_seconds", "From the head's end to the answer's.", _SECONDS, "path")
        self.stage_seconds = histogram("stage_seconds", "Where a computed answer's time went.", _STAGE_SECONDS, "stage")
        self.queue = gauge("queue_queries", "Queries that wait.", "livesum")
        self.batch_queries = histogram("batch_queries", "Queries encoded together.", _QUERIES)
        self.dropped = counter("dropped_total", "Requests that nobody waited for any more.", "why")
        self.cache_requests = counter(
            "cache_requests_total", "Queries looked up among kept answers.", "tier", "outcome"
        )
        self.cache_bytes = gauge("cache_bytes", "Answers kept in the processes.", "livesum")
        self._swaps = counter("swaps_total", "Versions opened beside another.", "outcome")
        for outcome in ("swapped", "refused"):  # from 0, so that the first is seen as a rise
            self._swaps.labels(outcome)
        self._swap_seconds = histogram("swap_seconds", "From hearing of a version to serving it.", _SWAP_SECONDS)
        self._bundle = gauge("bundle_info", "Workers that serve the version.", "livesum", "version")
        self._bundle_age = gauge("bundle_age_seconds", "Since the served bundle was built.", "livemax")
        self.ready = gauge("ready", "Workers that are ready.", "livesum")
        self.rate_limited = counter("rate_limited_total", "Requests over their key's rate.", "key")
        if with_redis:
            self._redis_up = gauge("redis_up", "1 while Redis answers.", "livemin")
            self.redis_errors = counter("redis_errors_total", "Calls that Redis did not answer.")
        self._created: datetime | None = None

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format."""
        if not self._shared:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def swapped(self, seconds: float) -> None:
        self._swaps.labels("swapped").inc()
        self._swap_seconds.observe(seconds)

    def refused(self) -> None:
        self._swaps.labels("refused").inc()

    def serves(self, version: str, before: str | None, created: datetime) -> None:
        """Name the version that this process serves from now on."""
        if before is not None:
            self._bundle.labels(before).set(0)
            if not self._shared:
                self._bundle.remove(before)
        self._bundle.labels(version).set(1)
        self._created = created
        self.tick()

    def tick(self) -> None:
        """Let what grows by itself grow."""
        if self._created is not None:
            self._bundle_age.set(time.time() - self._created.timestamp())

    def redis(self, answers: bool) -> None:
        """Redis answers again, or it failed to."""
        self._redis_up.set(answers)
        if not answers:
            self.redis_errors.inc()


def forget_process(process: int) -> None:
    """Take a worker that has ended out of what is counted over living ones."""
    multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]
