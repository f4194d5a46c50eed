"""Activation: change the current version, announce it, and wait until every replica serves it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from service.errors import NotServedError, RedisError
from service.redis_client import RedisClient
from service.store.store import Store
from service.versions.current import SharedCurrent
from service.versions.replicas import Refusal, Report, replicas_of

_POLL_SECONDS = 0.1
# If no replica reports for this time, `wait` concludes that no replica is running.
_NO_REPLICA_SECONDS = 3.0


class Activation:
    """Changes the current version of a store and reads the reports of its replicas.

    Args:
        store: The store.
        redis_client: The client of the Redis server that the replicas share, or None.
        stopping: Function that returns whether this service is shutting down; if so, `wait` ends.

    Attributes:
        replicas: The reports of the replicas.
    """

    def __init__(
        self, store: Store, redis_client: RedisClient | None, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._store, self._stopping = store, stopping
        self._shared = SharedCurrent(store, redis_client) if redis_client else None
        self._old_refusals: list[Refusal] = []
        self.replicas = replicas_of(store, redis_client)

    def activate(self, version: str) -> None:
        """Make a version current.

        Raises:
            StoreError: If the store does not contain the version.
            BundleError: If the manifest of the version is broken.
            RedisError: If Redis does not answer. The version is then current in the store, but Redis does not announce
                it.
        """
        self._remember_old_refusals()
        self._store.activate(version)
        self._announce(version)

    def rollback(self) -> str:
        """Make the version current that was current before, and return its name.

        Raises:
            StoreError: If there is no previous version.
            RedisError: As in `activate`.
        """
        self._remember_old_refusals()
        version = self._store.rollback().version
        self._announce(version)
        return version

    def wait(self, version: str, seconds: float) -> list[Report]:
        """Wait until every replica serves a version, and return the reports.

        Raises:
            NotServedError: If a replica refuses the version or does not serve it in time; names replica and reason.
            RedisError: If the reports cannot be read.
        """
        start = time.monotonic()
        while True:
            reports = [report for report in self.replicas.reports() if report.state == "serving"]
            behind = [report for report in reports if report.version != version]
            waited = time.monotonic() - start
            if reports and not behind:
                return reports
            if behind and all(self._refuses(report, version) for report in behind):
                raise NotServedError(_describe_replicas(version, behind, len(reports)))
            if self._stopping():
                raise NotServedError(
                    f"{version} is current; stopped waiting for the replicas, because this service stops"
                )
            if waited >= (seconds if reports else min(seconds, _NO_REPLICA_SECONDS)):
                raise NotServedError(_describe_replicas(version, behind, len(reports)))
            time.sleep(_POLL_SECONDS)

    def _remember_old_refusals(self) -> None:
        """Store the refusals that were reported before the change, because their reasons may be gone by now."""
        with contextlib.suppress(RedisError):
            self._old_refusals = [report.refused for report in self.replicas.reports() if report.refused]

    def _refuses(self, report: Report, version: str) -> bool:
        refused = report.refused
        return refused is not None and refused.version == version and refused not in self._old_refusals

    def _announce(self, version: str) -> None:
        if self._shared is None:
            return
        try:
            self._shared.announce(version)
        except RedisError as error:
            raise RedisError(
                f"{version} is current in the store, but {error}; "
                "until Redis answers, replicas read the current version from the store; "
                "run this command again when Redis answers"
            ) from error


def _describe_replicas(version: str, behind: list[Report], replicas: int) -> str:
    if not replicas:
        return (
            f"{version} is current, but no replica reports: none is running, none may write to the store's folder, "
            "or the replicas share a Redis that --redis-url does not name"
        )
    lines = [f"{version} is current, but {len(behind)} of {replicas} replicas do not serve it:"]
    for report in behind:
        reason = report.refused.error if report.refused and report.refused.version == version else ""
        lines.append(f"  {report.replica} serves {report.version}: {reason or 'it has not opened the new version yet'}")
    return "\n".join(lines)
