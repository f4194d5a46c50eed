"""Applies the entries that other processes append to the log of the store to all open versions."""

from __future__ import annotations

from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.background import BackgroundThread
from recollect.service.versions.open_versions import OpenVersions

# A change is visible in every replica after at most about this time. Without news, a check costs two `stat` calls.
_SECONDS = 0.5


class LogFollower:
    """Follows the log in a background thread.

    Args:
        versions: The open versions.
        metrics: Records the sequence number and the live keys of the current version.
    """

    def __init__(self, versions: OpenVersions, metrics: Metrics) -> None:
        self._versions, self._metrics = versions, metrics
        self._thread = BackgroundThread(
            "follow-log", self._catch_up, _SECONDS, "log_unreadable", lambda: {"serving": versions.version()}
        )

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Read the log now."""
        self._thread.wake()

    def stop(self) -> None:
        self._thread.stop()

    def _catch_up(self) -> None:
        """Apply new entries. A version that cannot read the log does not keep the others from reading it."""
        failures: list[Exception] = []
        for lease in self._versions.lease_open():
            with lease as predictor:
                try:
                    predictor.catch_up()
                except Exception as error:
                    failures.append(error)
        with self._versions.lease() as current:
            memory = current.memory
            self._metrics.memory_sequence.set(memory.sequence)
            self._metrics.memory_live_keys.set(0 if memory.view is None else memory.view.status.live_keys)
        if failures:
            raise failures[0]
