"""The model manager: serves the current version of the store, and swaps versions while requests arrive.

A background thread opens, checks and warms up the next version while the current version answers requests. The swap
itself replaces one reference. A request takes one lease of one version, so this version gives the whole answer. The
background thread closes the old version when its last lease is released. If a version cannot be served, it is refused:
the refusal is logged and reported, and the service keeps the current version.

A request holds a lease until its answer is complete. A batch holds leases of its own, because it can run longer than a
cancelled request. Closing a version unmaps gigabytes, so the background thread closes versions. If Python's reference
counts decided, the thread that drops the last reference would unmap the files, perhaps a thread that answers requests.
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

# Seconds after which a refused version is tried again, because the reason, such as too little free memory, may be gone.
_RETRY_SECONDS = 30.0
# Number of recent queries that warm up the next version. These queries stay in memory and are never written to disk.
_RECENT_QUERIES = 16


@dataclass(eq=False)
class OpenVersion:
    """A predictor, the time when it became current, and the number of its leases."""

    predictor: Predictor
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    leases: int = 0


class Lease:
    """One use of a version; usable as a context manager, or through `release`.

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
        """Take another lease of the same version, for work that can last longer than this lease."""
        with self._lock:
            if self._version is None:
                raise ValueError("expected a lease in use, found a released lease")
            return Lease(self._version, self._lock)

    def release(self) -> None:
        """Release the lease; a second call does nothing."""
        with self._lock:
            if self._version is not None:
                self._version.leases -= 1
                self._version = None

    def __enter__(self) -> Predictor:
        return self.predictor

    def __exit__(self, *_: object) -> None:
        self.release()


class Leases:
    """The current version, and the retired versions that are still in use; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._retired: list[OpenVersion] = []
        self.current: OpenVersion | None = None

    def lease(self) -> Lease:
        """Take a lease of the current version.

        Raises:
            NotReadyError: If no version is open yet.
        """
        with self._lock:
            return Lease(self.require_current(), self._lock)

    def require_current(self) -> OpenVersion:
        """The current version, for reading facts about it without a lease.

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
        """Close the retired versions without leases, and return their number."""
        with self._lock:
            unused = [version for version in self._retired if version.leases == 0]
            self._retired = [version for version in self._retired if version.leases > 0]
        for version in unused:
            version.predictor.close()
        return len(unused)


class ModelManager:
    """Holds the current version, leases it to requests, and replaces it in a background thread.

    Args:
        opener: Opens versions.
        current: Reads the name of the current version.
        replicas: Stores the reports of this replica.
        metrics: Records the swaps.
        poll_seconds: Seconds between two checks of `current`; `wake` starts a check at once.
    """

    def __init__(
        self, opener: Opener, current: Current, replicas: Replicas, metrics: Metrics, poll_seconds: float
    ) -> None:
        self._opener, self._current, self._replicas, self._metrics = opener, current, replicas, metrics
        self._poll_seconds = poll_seconds
        self._leases = Leases()
        self._recent_queries: deque[str] = deque(maxlen=_RECENT_QUERIES)
        self._load: Callable[[], float] = lambda: 0.0
        self._refused: Refusal | None = None
        self._retry_at = 0.0
        self._logged_errors: dict[str, str] = {}
        self._draining = threading.Event()
        self._closed = False
        self._wake = threading.Event()
        self._follower: threading.Thread | None = None

    def open_current(self) -> None:
        """Open the current version in the calling thread.

        Raises:
            StoreError: If no version is current.
            ServiceError: If the version may not be served; see `Opener.open`.
        """
        self._open(self._current.require())

    def lease(self) -> Lease:
        """Take a lease of the current version: `with manager.lease() as predictor`.

        The version stays open until the lease is released.

        Raises:
            NotReadyError: If no version is open yet.
        """
        return self._leases.lease()

    def serving(self) -> tuple[Manifest, datetime]:
        """The manifest of the version that this process serves, and the time since which it serves this version.

        Raises:
            NotReadyError: If no version is open yet.
        """
        current = self._leases.require_current()
        return current.predictor.manifest, current.since

    def version(self) -> str | None:
        """The name of the version that this process serves; None before the first version is open."""
        current = self._leases.current
        return current.predictor.version if current else None

    @property
    def draining(self) -> bool:
        return self._draining.is_set()

    def record(self, query: str) -> None:
        """Store a query, to warm up the next version with it."""
        self._recent_queries.append(query)

    def follow(self, load: Callable[[], float] = lambda: 0.0) -> None:
        """Check the current version regularly in a background thread, and open new versions, until `close`.

        Args:
            load: Function that returns the share of the computing threads that are busy; it paces the opening.
        """
        self._load = load
        context = contextvars.copy_context()  # the log context with the worker's number
        self._follower = threading.Thread(target=context.run, args=(self._follow,), name="follow-current", daemon=True)
        self._follower.start()

    def wake(self) -> None:
        """Check the current version now."""
        self._wake.set()

    def drain(self) -> None:
        """Report "not ready" and stop swapping versions; requests are still answered."""
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
        next_check_at = 0.0
        while not self._closed:
            if self._wake.is_set() or time.monotonic() >= next_check_at:
                self._wake.clear()
                self._run_step("store_unreadable", self._refresh)
                next_check_at = time.monotonic() + self._poll_seconds
            self._run_step("report_unwritable", self._report)
            if self._leases.close_unused():
                _return_freed_memory()
            self._metrics.update_bundle_age()
            self._wake.wait(min(self._poll_seconds, REPORT_SECONDS))

    def _run_step(self, event: str, step: Callable[[], None]) -> None:
        """Run one step of the background thread.

        If a step fails with the same error several times in a row, log the error only once.
        """
        try:
            step()
            self._logged_errors.pop(event, None)
        except RedisError:  # the Redis client has logged it
            pass
        except Exception as error:  # the next check may succeed
            if self._logged_errors.get(event) != str(error):
                self._logged_errors[event] = str(error)
                is_bug = not isinstance(error, ServiceError | OSError)
                log.error(event, error=str(error), serving=self.version(), exc_info=error if is_bug else None)

    def _refresh(self) -> None:
        """Open the current version, unless this process serves it already or refused it a short time ago."""
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
            except Exception as error:  # any error: the version in use stays
                reason = shorten(str(error) or repr(error))
                self._refused = Refusal(version=current, error=reason, at=datetime.now(UTC))
                self._retry_at = time.monotonic() + _RETRY_SECONDS
                self._metrics.refused()
                log.error("bundle_refused", version=current, error=str(error), serving=self.version())

    def _open(self, version: str) -> None:
        start, before = time.monotonic(), self.version()
        throttle = Throttle(self._load, self._draining) if before else None
        current = self._leases.current
        share_with = [current.predictor] if current else []
        predictor = self._opener.open(version, [*self._recent_queries], throttle, share_with)
        self._leases.replace(predictor)
        self._refused = None
        seconds = round(time.monotonic() - start, 3)
        log.info("bundle_swapped" if before else "bundle_opened", version=version, before=before, seconds=seconds)
        if before:
            self._metrics.swapped(seconds)
        self._metrics.set_version(version, before, predictor.manifest.created)
        self._metrics.ready.set(not self.draining)

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
    """Return freed memory to the operating system; glibc would keep it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
