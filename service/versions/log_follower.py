"""Applies the entries that other processes append to the log of the store to all open versions."""

from __future__ import annotations

from service.versions.background import BackgroundThread
from service.versions.open_versions import OpenVersions

# A change is visible in every replica after at most about this time. Without news, a check costs two `stat` calls.
_SECONDS = 0.5


class LogFollower:
    """Follows the log in a background thread.

    Args:
        versions: The open versions.
    """

    def __init__(self, versions: OpenVersions) -> None:
        self._versions = versions
        self._thread = BackgroundThread(
            "follow-log", self._catch_up, _SECONDS, "log_unreadable", lambda: {"serving": versions.version()}
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def _catch_up(self) -> None:
        leases = self._versions.lease_open()
        try:
            for lease in leases:
                if lease.predictor.log is not None:
                    lease.predictor.log.catch_up()
        finally:
            for lease in leases:
                lease.release()
