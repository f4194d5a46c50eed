"""Prometheus metrics of all workers of a service.

If there are several workers, each worker writes its values to a file in a shared folder. The worker that receives a
request for `/metrics` combines all files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.metrics import MetricWrapperBase

from recollect.core.settings import SHARED_METRICS
from recollect.core.system.ram import process_memory

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# How the values of several workers become one value: their sum, minimum or maximum over running workers.
Combination = Literal["livesum", "livemin", "livemax"]

_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STAGE_SECONDS = (0.0001, 0.0002, 0.0005, *_SECONDS[:-2])
_SWAP_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# How a request ends that a version has tried to answer.
Outcome = Literal["answered", "deadline", "failed"]
_Metric = TypeVar("_Metric", bound=MetricWrapperBase)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """All metrics of the service; those of Redis, Milvus and the TLS certificate only if the service uses them."""

    def __init__(
        self, with_redis: bool = False, with_engine: bool = False, with_tls: bool = False, with_encoder: bool = False
    ) -> None:
        self._shared = SHARED_METRICS in os.environ
        self._registry = registry = CollectorRegistry()

        def counter(name: str, help_: str, *labels: str) -> Counter:
            return Counter(f"recollect_{name}", help_, labels, registry=registry)

        def gauge(name: str, help_: str, combination: Combination, *labels: str) -> Gauge:
            return Gauge(f"recollect_{name}", help_, labels, registry=registry, multiprocess_mode=combination)

        def histogram(name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"recollect_{name}", help_, labels, registry=registry, buckets=buckets)

        self.requests = counter("requests_total", "Number of answered requests.", "path", "status")
        self.request_seconds = histogram(
            "request_seconds", "Time from the end of the request's headers to the end of the answer.", _SECONDS, "path"
        )
        self.stage_seconds = histogram(
            "stage_seconds",
            "Time of each request in the queue, and time of each other stage of a batch.",
            _STAGE_SECONDS,
            "stage",
        )
        self.queue = gauge("queue_queries", "Number of queries in the queue.", "livesum")
        self.batch_queries = histogram("batch_queries", "Number of queries that were encoded together.", _QUERIES)
        self.dropped = counter(
            "dropped_total", "Number of requests dropped because the client disconnected or the deadline passed.", "why"
        )
        self.coalesced = counter(
            "coalesced_total", "Number of requests that waited for the answer of an equal request in progress."
        )
        self.reranked = counter(
            "reranked_total",
            "Number of queries that a cross-encoder was to read: read, or left out because of the deadline, the server "
            "or a vector in place of a text.",
            "outcome",
        )
        self.batcher_hung = gauge(
            "batcher_hung",
            "Number of workers with a batch of which one block takes longer than --hang-seconds.",
            "livesum",
        )
        self.cache_requests = counter(
            "cache_requests_total", "Number of queries that were looked up in the answer cache.", "tier", "outcome"
        )
        self.cache_bytes = gauge("cache_bytes", "Size of the answer caches in memory.", "livesum")
        self._swaps = counter("swaps_total", "Number of attempts to replace the served version.", "outcome")
        for outcome in ("swapped", "refused"):  # starts at 0, so that Prometheus sees the first increase
            self._swaps.labels(outcome)
        self._swap_seconds = histogram(
            "swap_seconds", "Time from finding a new current version to serving it.", _SWAP_SECONDS
        )
        self._bundle = gauge("bundle_info", "Number of workers that serve the version.", "livesum", "version")
        self._bundle_age = gauge("bundle_age_seconds", "Time since the served bundle was built.", "livemax")
        self._private_memory = gauge("private_memory_bytes", "Memory of the service without mapped files.", "livesum")
        self._mapped_memory = gauge(
            "mapped_memory_bytes", "Mapped files in the memory of the worker that maps most.", "livemax"
        )
        self.generation = gauge(
            "generation",
            "Generation of the activation record in the store, and of the record that the service has carried out. "
            "With several workers, the lowest.",
            "livemin",
            "source",
        )
        self.version_requests = counter(
            "version_requests_total",
            "Number of requests that the version answered or failed to answer.",
            "version",
            "outcome",
        )
        self.version_seconds = histogram(
            "version_request_seconds",
            "Time in which the version answered a request, with the time in the queue.",
            _SECONDS,
            "version",
        )
        self.memory_sequence = gauge(
            "memory_sequence",
            "Sequence number of the last change of the live memory that the current version knows. With several "
            "workers, the lowest.",
            "livemin",
        )
        self.memory_live_keys = gauge(
            "memory_live_keys", "Number of live keys of the current version, which --delta-keys limits.", "livemax"
        )
        self.memory_live_bytes = gauge(
            "memory_live_bytes",
            "Memory of the live entries of the current version in a worker, which --delta-mb limits.",
            "livemax",
        )
        self.log_lines_dropped = counter(
            "log_lines_dropped_total", "Number of log lines that could not be written, or not fast enough."
        )
        self.ready = gauge("ready", "Number of workers that are ready.", "livesum")
        self.rate_limited = counter(
            "rate_limited_total", "Number of requests refused because their API key exceeded its rate limit.", "key"
        )
        if with_redis:
            self._redis_up = gauge("redis_up", "1 if Redis answered the last call of this use.", "livemin", "use")
            self.redis_errors = counter("redis_errors_total", "Number of calls that Redis refused or did not answer.")
        if with_tls:
            self.certificate_end = gauge(
                "certificate_end_seconds", "Time at which the TLS certificate ends, in seconds since 1970.", "livemin"
            )
        self.encoder_up: Gauge | None = None
        if with_encoder:
            self.encoder_up = gauge(
                "encoder_up",
                "1 while the server of vectors answers the current version; 0 while its calls fail at once.",
                "livemin",
            )
            self.encoder_up.set(1)
        self.engine_up: Gauge | None = None
        if with_engine:
            self.engine_up = gauge(
                "engine_up", "1 while Milvus answers the current version; 0 while its calls fail at once.", "livemin"
            )
            self.engine_up.set(1)
            self._engine_seconds = histogram(
                "engine_call_seconds", "Time of each call that Milvus answered.", _SECONDS, "method"
            )
            self._engine_errors = counter(
                "engine_errors_total", "Number of calls that Milvus refused or did not answer.", "method", "reason"
            )
            for method in ("search", "query"):  # starts at 0, so that Prometheus sees the first increase
                self._engine_seconds.labels(method)
                for reason in ("unreachable", "unauthenticated", "timeout", "not_loaded", "refused"):
                    self._engine_errors.labels(method, reason)
        self._created: datetime | None = None

    @functools.cache  # noqa: B019 - a process has one object
    def child(self, metric: _Metric, *labels: str | int) -> _Metric:
        """A metric with these labels. The library's own method takes 1.5 microseconds, too long for each request."""
        return metric.labels(*labels)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        self.child(self.requests, path, status).inc()
        self.child(self.request_seconds, path).observe(seconds)

    def count_stages(self, milliseconds: Mapping[str, float]) -> None:
        for stage, spent in milliseconds.items():
            self.child(self.stage_seconds, stage).observe(spent / 1e3)

    def count_outcome(self, version: str, outcome: Outcome, seconds: float | None = None) -> None:
        """Count a request that a version has tried to answer, and the time of its answer."""
        self.child(self.version_requests, version, outcome).inc()
        if seconds is not None:
            self.child(self.version_seconds, version).observe(seconds)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        if not self._shared:
            return generate_latest(self._registry)
        _forget_exited_workers(Path(os.environ[SHARED_METRICS]))
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def swapped(self, seconds: float) -> None:
        self._swaps.labels("swapped").inc()
        self._swap_seconds.observe(seconds)

    def refused(self) -> None:
        self._swaps.labels("refused").inc()

    def set_version(self, version: str, before: str | None, created: datetime) -> None:
        """Set the version that this process serves from now on."""
        if before is not None:
            self._bundle.labels(before).set(0)
            if not self._shared:
                self._bundle.remove(before)
        self._bundle.labels(version).set(1)
        self._created = created
        self.refresh()

    def forget_version(self, version: str) -> None:
        """Remove the metrics of a version that is closed, so that their number stays small.

        The files of shared metrics keep them until the service ends.
        """
        if self._shared:
            return
        Metrics.child.cache_clear()
        for outcome in get_args(Outcome):
            with contextlib.suppress(KeyError):
                self.version_requests.remove(version, outcome)
        with contextlib.suppress(KeyError):
            self.version_seconds.remove(version)

    def refresh(self) -> None:
        """Set the values that change with time: the age of the bundle and the size of the process."""
        if self._created is not None:
            self._bundle_age.set(time.time() - self._created.timestamp())
        if (memory := process_memory()) is not None:
            self._private_memory.set(memory.private)
            self._mapped_memory.set(memory.mapped)

    def count_engine_call(self, method: str, seconds: float, reason: str | None) -> None:
        """Count a call of Milvus; `reason` says why it failed, and is None if Milvus answered."""
        if reason is None:
            self._engine_seconds.labels(method).observe(seconds)
        else:
            self._engine_errors.labels(method, reason).inc()

    def set_redis_up(self, use: str, up: bool) -> None:
        self._redis_up.labels(use).set(up)
        if not up:
            self.redis_errors.inc()


def _forget_exited_workers(folder: Path) -> None:
    """Remove the gauges of the workers that do not run any more. Their counters and histograms stay."""
    for path in folder.glob("gauge_*.db"):
        process = int(path.stem.rpartition("_")[2])
        try:
            os.kill(process, 0)
        except (ProcessLookupError, PermissionError):  # PermissionError: another user's process has the number now
            with contextlib.suppress(FileNotFoundError):  # another worker has removed it
                multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]
