"""The model manager: starts and stops the threads that open, replace and close the versions of a process."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.background import BackgroundThread
from recollect.service.versions.follower import Follower
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.opening import Opener
from recollect.service.versions.reports import Reporter, Reports

log = structlog.get_logger(__name__)

# A change of the live memory is visible in every replica after at most about this time. Without news, a check costs two
# `stat` calls.
_LOG_SECONDS = 0.5


class ModelManager:
    """Starts and stops the threads of a process that follow the store.

    Args:
        opener: Opens versions.
        reports: The reports of all replicas.
        metrics: Records the swaps, and the live memory of the current version.
        poll_seconds: Seconds between two checks of the activation record; `wake` starts a check at once.

    Attributes:
        versions: The open versions, from which requests take leases.
    """

    def __init__(self, opener: Opener, reports: Reports, metrics: Metrics, poll_seconds: float) -> None:
        self._metrics = metrics
        self.versions = OpenVersions()
        self._reporter = Reporter(reports, self.versions)
        self._follower = Follower(opener, self.versions, self._reporter, metrics, poll_seconds)
        self._recommended = False
        self._log_reader = BackgroundThread(
            "follow-log", self._read_log, _LOG_SECONDS, "log_unreadable", lambda: {"serving": self.versions.version()}
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
        """Follow the store in background threads, until `close`.

        Args:
            load: Function that returns the share of the computing threads that are busy; it paces the opening.
        """
        self._follower.start(load)
        self._log_reader.start()

    def wake(self) -> None:
        """Read the activation record now."""
        self._follower.wake()

    def follow_log(self) -> None:
        """Read the log of the live memory now."""
        self._log_reader.wake()

    def drain(self) -> None:
        """Report "not ready" and stop swapping versions; requests are still answered."""
        self.versions.draining = True
        self._follower.drain()
        self._metrics.ready.set(0)
        self._reporter.leave()

    def withdraw(self, seconds: float) -> None:
        """Remove the report of this replica within this time, before the process ends at once.

        Otherwise `activate --wait` would count this replica as killed.
        """
        self._reporter.withdraw(seconds)

    def close(self) -> None:
        """Stop the background threads, and remove the report of this replica."""
        self.drain()
        self._follower.stop()
        self._log_reader.stop()
        self._reporter.stop()

    def _read_log(self) -> None:
        """Apply the changes of other processes to all open versions.

        A version that cannot read the log does not keep the others from reading it.
        """
        failures: list[Exception] = []
        for lease in self.versions.lease_open():
            with lease as predictor:
                try:
                    predictor.catch_up()
                except Exception as error:
                    failures.append(error)
        with self.versions.lease() as current:
            memory = current.memory
            self._metrics.memory_sequence.set(memory.sequence)
            self._metrics.memory_live_keys.set(memory.snapshot.live_keys)
            if (pays := memory.snapshot.compaction_pays) and not self._recommended:
                log.warning(
                    "compaction_recommended",
                    version=current.version,
                    live_keys=memory.snapshot.live_keys,
                    run="recollect compact STORE --activate",
                )
            self._recommended = pays
        if failures:
            raise failures[0]
