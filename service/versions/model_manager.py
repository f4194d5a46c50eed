"""The model manager: follows the current version of the store and swaps versions while requests arrive.

One background thread opens, checks and warms the next version beside the current one, throttled while requests
arrive. Then it replaces one reference. A request takes one lease, so one version gives its whole answer. The thread
closes the old version once its last lease is released. If a version cannot be served, it is refused: the refusal is
logged and reported, and the current version stays.

A request holds a lease until its answer is complete. A batch holds leases of its own, because it can run longer than a
request that was cancelled. Closing a version unmaps gigabytes, so the background thread does it. With Python's
reference counts alone, the thread that drops the last reference would do it, perhaps one that answers requests.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from service.bundle.manifest import Manifest
from service.errors import NotReadyError, RedisError, ServiceError
from service.predictor.predictor import Predictor
from service.telemetry.metrics import Metrics
from service.versions.current import Current
from service.versions.opening import Opener
from service.versions.replicas import REPORT_SECONDS, Refusal, Replicas, Report, replica_name, shorten
from service.versions.throttle import CancelledWorkError, Throttle

log = structlog.get_logger(__name__)

# Seconds before a refused version is tried again: the reason, such as too little free memory, may have passed.
_RETRY_SECONDS = 30.0
# Number of recent queries that warm the next version. They stay in memory and are never written to disk.
_RECENT_QUERIES = 16
# Seconds after the last query during which opening a version is throttled.
_BUSY_SECONDS = 1.0


@dataclass(eq=False)
class OpenVersion:
    """A predictor, the time when it became current, and the number of its leases."""

    predictor: Predictor
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    leases: int = 0


class Lease:
    """One use of a version: a context manager, or an object with `release`.

    Attributes:
        predictor: The version's predictor; usable until the lease is released.
    """

    __slots__ = ("_lock", "_version", "predictor")

    def __init__(self, version: OpenVersion, lock: threading.Lock) -> None:
        """Count the lease; the caller holds `lock`."""
        version.leases += 1
        self.predictor = version.predictor
        self._version: OpenVersion | None = version
        self._lock = lock

    def share(self) -> Lease:
        """Another lease of the same version, for work that can outlive this lease."""
        with self._lock:
            if self._version is None:
                raise ValueError("expected a lease that is held, found one that was released")
            return Lease(self._version, self._lock)

    def release(self) -> None:
        """End the use; a second call does nothing."""
        with self._lock:
            if self._version is not None:
                self._version.leases -= 1
                self._version = None

    def __enter__(self) -> Predictor:
        return self.predictor

    def __exit__(self, *_: object) -> None:
        self.release()


class Leases:
    """The current version and the retired versions that are still in use; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._retired: list[OpenVersion] = []
        self.current: OpenVersion | None = None

    def lease(self) -> Lease:
        """A lease of the current version.

        Raises:
            NotReadyError: If no version is open yet.
        """
        with self._lock:
            return Lease(self.require_current(), self._lock)

    def require_current(self) -> OpenVersion:
        """The current version, to read facts about it.

        Raises:
            NotReadyError: If no version is open yet.
        """
        if (current := self.current) is None:
            raise NotReadyError("no bundle is loaded yet; try again shortly")
        return current

    def replace(self, predictor: Predictor) -> None:
        """Make a predictor current and retire the previous one."""
        opened = OpenVersion(predictor)
        with self._lock:
            if self.current is not None:
                self._retired.append(self.current)
            self.current = opened

    def close_unused(self) -> int:
        """Close the retired versions without a lease, and return how many there were."""
        with self._lock:
            unused = [version for version in self._retired if version.leases == 0]
            self._retired = [version for version in self._retired if version.leases > 0]
        for version in unused:
            version.predictor.close()
        return len(unused)


class ModelManager:
    """Holds the current version, leases it to requests, and follows the store in a background thread.

    Args:
        opener: Opens versions.
        current: Names the version to serve.
        replicas: Receives the reports of this replica.
        metrics: Receives the metrics of swaps.
        poll_seconds: Time between two looks at `current`; `wake` starts a look at once.
    """

    def __init__(
        self, opener: Opener, current: Current, replicas: Replicas, metrics: Metrics, poll_seconds: float
    ) -> None:
        self._opener, self._current, self._replicas, self._metrics = opener, current, replicas, metrics
        self._poll_seconds = poll_seconds
        self._leases = Leases()
        self._recent_queries: deque[str] = deque(maxlen=_RECENT_QUERIES)
        self._last_query_at = -_BUSY_SECONDS
        self._refused: Refusal | None = None
        self._retry_at = 0.0
        self._logged_errors: dict[str, str] = {}
        self._draining = threading.Event()
        self._closed = False
        self._wake = threading.Event()
        self._follower: threading.Thread | None = None

    def open_current(self) -> None:
        """Open the current version in this thread.

        Raises:
            StoreError: If no version is current.
            ServiceError: If the version may not be served; see `Opener.open`.
        """
        self._open(self._current.require())

    def lease(self) -> Lease:
        """Lease the current version: `with manager.lease() as predictor`. It stays open until the lease is released.

        Raises:
            NotReadyError: If no version is open yet.
        """
        return self._leases.lease()

    def serving(self) -> tuple[Manifest, datetime]:
        """The manifest of the version that serves, and since when it serves.

        Raises:
            NotReadyError: If no version is open yet.
        """
        current = self._leases.require_current()
        return current.predictor.manifest, current.since

    def version(self) -> str | None:
        """The name of the version that serves; None before the first one is open."""
        current = self._leases.current
        return current.predictor.version if current else None

    @property
    def draining(self) -> bool:
        return self._draining.is_set()

    def record(self, query: str) -> None:
        """Remember a query, to warm the next version with it."""
        self._recent_queries.append(query)
        self._last_query_at = time.monotonic()

    def follow(self) -> None:
        """Follow the current version in a background thread, until `close`."""
        context = contextvars.copy_context()  # the log context, which names the worker
        self._follower = threading.Thread(target=context.run, args=(self._follow,), name="follow-current", daemon=True)
        self._follower.start()

    def wake(self) -> None:
        """Look at the current version now."""
        self._wake.set()

    def drain(self) -> None:
        """Report not ready and stop swapping; requests are still answered."""
        self._draining.set()
        self._metrics.ready.set(0)
        self.wake()

    def close(self) -> None:
        """Stop the background thread and withdraw the report of this replica."""
        self._draining.set()
        self._closed = True
        self._opener.store.close()
        self.wake()
        if self._follower:
            self._follower.join()
        with contextlib.suppress(OSError):
            self._replicas.leave()

    def _follow(self) -> None:
        next_look_at = 0.0
        while not self._closed:
            if self._wake.is_set() or time.monotonic() >= next_look_at:
                self._wake.clear()
                self._run_step("store_unreadable", self._refresh)
                next_look_at = time.monotonic() + self._poll_seconds
            self._run_step("report_unwritable", self._report)
            if self._leases.close_unused():
                _return_freed_memory()
            self._metrics.update_bundle_age()
            self._wake.wait(min(self._poll_seconds, REPORT_SECONDS))

    def _run_step(self, event: str, step: Callable[[], None]) -> None:
        """Run a step of the loop; log an error once, not again at every look."""
        try:
            step()
            self._logged_errors.pop(event, None)
        except RedisError:  # the Redis client logs it
            pass
        except Exception as error:  # the next look may succeed
            if self._logged_errors.get(event) != str(error):
                self._logged_errors[event] = str(error)
                is_bug = not isinstance(error, ServiceError | OSError)
                log.error(event, error=str(error), serving=self.version(), exc_info=error if is_bug else None)

    def _refresh(self) -> None:
        """Open the current version if another one serves, unless it was refused a short time ago."""
        current = self._current.version()
        if self.draining:
            return
        if current is None or current == self.version():
            self._refused = None
        elif self._refused is None or self._refused.version != current or time.monotonic() >= self._retry_at:
            try:
                self._open(current)
            except CancelledWorkError:
                return
            except Exception as error:  # the version that serves stays, whatever is wrong with the next one
                reason = shorten(str(error) or repr(error))
                self._refused = Refusal(version=current, error=reason, at=datetime.now(UTC))
                self._retry_at = time.monotonic() + _RETRY_SECONDS
                self._metrics.refused()
                log.error("bundle_refused", version=current, error=str(error), serving=self.version())

    def _open(self, version: str) -> None:
        start, before = time.monotonic(), self.version()
        throttle = Throttle(self._is_busy, self._draining) if before else None
        predictor = self._opener.open(version, [*self._recent_queries], throttle)
        self._leases.replace(predictor)
        self._refused = None
        seconds = round(time.monotonic() - start, 3)
        log.info("bundle_swapped" if before else "bundle_opened", version=version, before=before, seconds=seconds)
        if before:
            self._metrics.swapped(seconds)
        self._metrics.set_version(version, before, predictor.manifest.created)
        self._metrics.ready.set(not self.draining)

    def _is_busy(self) -> bool:
        return time.monotonic() - self._last_query_at < _BUSY_SECONDS

    def _report(self) -> None:
        if (current := self._leases.current) is not None:
            self._replicas.report(
                Report(
                    replica=replica_name(),
                    state="draining" if self.draining else "serving",
                    version=current.predictor.version,
                    since=current.since,
                    refused=self._refused,
                )
            )


def _return_freed_memory() -> None:
    """Return freed memory to the system; glibc would keep it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
