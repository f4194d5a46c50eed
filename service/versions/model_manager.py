"""The model manager: leases the current version to requests, while the follower swaps versions in the background."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime

from service.bundle.manifest import Manifest
from service.canary.breaker import BreakerLimits
from service.canary.trial import Trial
from service.telemetry.metrics import Metrics
from service.versions.announcements import Announcements
from service.versions.canary import CanaryController
from service.versions.desired_version import DesiredVersion
from service.versions.follower import Follower
from service.versions.leases import Lease, Leases
from service.versions.opening import Opener
from service.versions.replicas import Replicas
from service.versions.reporter import Reporter

# Number of recent queries that warm up the next version. These queries stay in memory and are never written to disk.
_RECENT_QUERIES = 16


class ModelManager:
    """Leases the current version to requests, and starts and stops the threads that replace it.

    Args:
        opener: Opens versions.
        replicas: The registry to which this replica reports.
        metrics: Records the swaps.
        poll_seconds: Seconds between two checks of the desired version; `wake` starts a check at once.
        announcements: The generation that Redis announces, if the replicas share a Redis.
        canary_limits: When a canary is stopped; None means the default limits.
    """

    def __init__(
        self,
        opener: Opener,
        replicas: Replicas,
        metrics: Metrics,
        poll_seconds: float,
        announcements: Announcements | None = None,
        canary_limits: BreakerLimits | None = None,
    ) -> None:
        self._metrics = metrics
        self._leases = Leases(metrics.by_version)
        self._recent_queries: deque[str] = deque(maxlen=_RECENT_QUERIES)
        self._draining = threading.Event()
        self._reporter = Reporter(replicas, self._leases, metrics)
        self._follower = Follower(
            opener,
            DesiredVersion(opener.store),
            self._leases,
            self._reporter,
            metrics,
            announcements,
            poll_seconds,
            lambda: [*self._recent_queries],
            CanaryController(self._leases, replicas, self._reporter, metrics, canary_limits or BreakerLimits()),
        )

    def open_current(self) -> None:
        """Open the current version in the calling thread.

        Raises:
            StoreError: If no version is current.
            ServiceError: If the version may not be served; see `Opener.open`.
        """
        try:
            self._follower.open_first()
        except BaseException:
            self._reporter.stop()
            raise

    def lease(self, key: str | None = None) -> Lease:
        """Take a lease of the current version: `with manager.lease() as predictor`.

        The version stays open until the lease is released. If a request with this key belongs to the share of a canary,
        the lease is one of the canary.

        Raises:
            NotReadyError: If no version is open yet.
        """
        return self._leases.lease(key)

    def lease_canary(self, trial: Trial) -> Lease | None:
        """Take a lease of the canary; None if its trial has ended."""
        return self._leases.lease_canary(trial)

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
        """Follow the desired version in background threads, until `close`.

        Args:
            load: Function that returns the share of the computing threads that are busy; it paces the opening.
        """
        self._follower.start(load)

    def wake(self) -> None:
        """Check the desired version now."""
        self._follower.wake()

    def drain(self) -> None:
        """Report "not ready" and stop swapping versions; requests are still answered."""
        self._draining.set()
        self._metrics.ready.set(0)
        self._follower.drain()
        self._reporter.draining()

    def close(self) -> None:
        """Stop the background threads, and remove this replica from the registry."""
        self.drain()
        self._follower.stop()
        self._reporter.stop()
