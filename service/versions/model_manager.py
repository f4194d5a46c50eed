"""The model manager: starts and stops the threads that open, replace and close the versions of a process."""

from __future__ import annotations

from collections.abc import Callable

from recollect.service.canary.breaker import BreakerLimits
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.announcements import Announcements
from recollect.service.versions.canary import CanaryController
from recollect.service.versions.desired_version import DesiredVersion
from recollect.service.versions.follower import Follower
from recollect.service.versions.log_follower import LogFollower
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.opening import Opener
from recollect.service.versions.replicas import Replicas
from recollect.service.versions.reporter import Reporter


class ModelManager:
    """Starts and stops the followers and the reporter of a process.

    Args:
        opener: Opens versions.
        replicas: The registry to which this replica reports.
        metrics: Records the swaps.
        poll_seconds: Seconds between two checks of the desired version; `wake` starts a check at once.
        announcements: The generation that Redis announces, if the replicas share a Redis.
        canary_limits: When a canary is stopped; None means the default limits.

    Attributes:
        versions: The open versions, from which requests take leases.
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
        self.versions = OpenVersions(metrics.by_version)
        self._reporter = Reporter(replicas, self.versions, metrics)
        self._log_follower = LogFollower(self.versions, metrics)
        self._follower = Follower(
            opener,
            DesiredVersion(opener.store),
            self.versions,
            self._reporter,
            metrics,
            announcements,
            poll_seconds,
            CanaryController(self.versions, replicas, self._reporter, metrics, canary_limits or BreakerLimits()),
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

    def follow(self, load: Callable[[], float] = lambda: 0.0) -> None:
        """Follow the desired version in background threads, until `close`.

        Args:
            load: Function that returns the share of the computing threads that are busy; it paces the opening.
        """
        self._follower.start(load)
        self._log_follower.start()

    def wake(self) -> None:
        """Check the desired version now."""
        self._follower.wake()

    def follow_log(self) -> None:
        """Read the log of the live memory now."""
        self._log_follower.wake()

    def drain(self) -> None:
        """Report "not ready" and stop swapping versions; requests are still answered."""
        self.versions.draining = True
        self._follower.drain()
        self._metrics.ready.set(0)
        self._reporter.draining()

    def withdraw(self, seconds: float) -> None:
        """Remove this replica from the registry within this time, before the process ends at once.

        Otherwise `activate --wait` would count this replica as killed.
        """
        self._reporter.withdraw(seconds)

    def close(self) -> None:
        """Stop the background threads, and remove this replica from the registry."""
        self.drain()
        self._follower.stop()
        self._log_follower.stop()
        self._reporter.stop()
