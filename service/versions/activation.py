"""Activation: change the current version, announce it, and wait until every replica serves it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from recollect.service.errors import CanaryStoppedError, NotServedError, RedisError, StoreError
from recollect.service.redis_client import RedisClient
from recollect.service.store.activation_record import ActivationRecord, Canary
from recollect.service.store.store import Store
from recollect.service.versions.announcements import Announcements
from recollect.service.versions.replicas import Seen, replicas_of, reports
from recollect.service.versions.reports import CanaryReport, Report

_POLL_SECONDS = 0.1
# Time between two checks of `wait` whether another version was activated.
_RECORD_SECONDS = 1.0
# If no replica reports for this time, `wait` concludes that no replica is running.
_NO_REPLICA_SECONDS = 3.0
# A replica without a report counts as lost after this time. If Redis loses its data, all replicas report again sooner.
_LOST_SECONDS = 5.0

_STOPPED = {"stopped": "stopped", "failed": "refused to open"}


class Activation:
    """Changes the current version of a store and reads the reports of its replicas.

    Args:
        store: The store.
        redis_client: The client of the Redis server that the replicas share, or None.
        stopping: Function that returns whether this service is shutting down; if so, `wait` ends.

    Attributes:
        replicas: The registry of the replicas.
    """

    def __init__(
        self, store: Store, redis_client: RedisClient | None, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._store, self._stopping = store, stopping
        self._announcements = Announcements(redis_client) if redis_client else None
        self.replicas = replicas_of(store, redis_client)

    def activate(self, version: str, by: str | None = None, why: str = "") -> ActivationRecord:
        """Make a version current; see `Store.activate`.

        Raises:
            StoreError: If the store does not contain the version.
            BundleError: If the manifest of the version is broken.
            RedisError: If Redis does not answer. The version is then current in the store, but Redis does not announce
                it.
        """
        return self._announce(self._store.activate(version, by, why))

    def start_canary(self, canary: Canary, by: str | None = None, why: str = "") -> ActivationRecord:
        """Try a version on a share of the requests; see `Store.start_canary`.

        Raises:
            StoreError, BundleError, RedisError: As in `activate`.
            CanaryError: If the version is already current, or no version is current.
        """
        return self._announce(self._store.start_canary(canary, by, why))

    def promote(self, by: str | None = None, why: str = "", force: bool = False) -> ActivationRecord:
        """Make the canary the current version; see `Store.promote`.

        Args:
            by: The user.
            why: The reason.
            force: Whether to promote a canary that a replica stopped or refused.

        Raises:
            CanaryError: If there is no canary.
            CanaryStoppedError: If a replica stopped or refused the canary.
            RedisError: As in `activate`, or if the reports cannot be read.
        """
        record = self._store.activation()
        if record is not None and record.canary is not None and not force:
            self._require_not_stopped(record)
        return self._announce(self._store.promote(by, why, record.generation if record else None))

    def rollback(self, by: str | None = None, why: str = "") -> ActivationRecord:
        """Remove the canary, or make the version current that was current before; see `Store.rollback`.

        Raises:
            StoreError: If there is neither a canary nor a previous version.
            RedisError: As in `activate`.
        """
        return self._announce(self._store.rollback(by, why))

    def wait(self, record: ActivationRecord, seconds: float, replicas: int | None = None) -> list[Report]:
        """Wait until every replica serves the version of a record and has opened its canary, and return the reports.

        Args:
            record: The record that the activation wrote.
            seconds: Maximum time to wait.
            replicas: Number of replicas that must serve the version. None means all replicas that reported in the
                minute before or report now.

        Raises:
            NotServedError: If a replica refuses the version, is lost, or does not serve the version in time, or if
                another version is activated; names the replicas and the reasons.
            RedisError: If the reports cannot be read until the time is over.
        """
        start = record_read_at = time.monotonic()
        rollout = _Rollout(record, replicas)
        while True:
            waited = time.monotonic() - start
            error = None
            try:
                rollout.update(self.replicas.seen())
            except RedisError as failure:
                error = failure
            else:
                if rollout.complete:
                    return rollout.serving
            if time.monotonic() - record_read_at >= _RECORD_SECONDS:
                record_read_at = time.monotonic()
                self._require_current(record)
            if self._stopping():
                raise NotServedError(
                    f"{record.version} is current; stopped waiting for the replicas, because this service stops"
                )
            none_runs = not rollout.known and replicas is None
            if rollout.failed or waited >= (min(seconds, _NO_REPLICA_SECONDS) if none_runs else seconds):
                raise error or NotServedError(rollout.describe())
            time.sleep(_POLL_SECONDS)

    def _require_current(self, record: ActivationRecord) -> None:
        current = None
        with contextlib.suppress(StoreError, OSError):  # the next check tries again
            current = self._store.activation()
        if current is not None and current.generation > record.generation:
            raise NotServedError(
                f"{record.version} is not current any more: {current.by} made {current.version} current "
                f"(generation {current.generation}); see `recollect log`"
            )

    def _require_not_stopped(self, record: ActivationRecord) -> None:
        for report in reports(self.replicas):
            canary = report.canary
            if canary is not None and canary.generation == record.generation and canary.error is not None:
                replica = canary.stopped_by or report.replica
                raise CanaryStoppedError(
                    f"{canary.version}: expected an open canary, but {replica} {_STOPPED[canary.state]} it: "
                    f"{canary.error}; run `recollect rollback`, or `recollect promote --force`"
                )

    def _announce(self, record: ActivationRecord) -> ActivationRecord:
        if self._announcements is not None:
            try:
                self._announcements.announce(record.generation)
            except RedisError as error:
                raise RedisError(
                    f"{record.version} is current in the store, but {error}; "
                    "replicas find the version when they next read the store"
                ) from error
        return record


class _Rollout:
    """The replicas that must serve the version of a record, and their reports.

    Attributes:
        known: Whether a replica has been seen.
        names: The replicas that reported since the beginning, except replicas that stopped regularly.
        serving: The reports of the replicas that serve the version.
    """

    def __init__(self, record: ActivationRecord, replicas: int | None) -> None:
        self._record, self._replicas = record, replicas
        self._fact = f"{record.canary.version} is the canary" if record.canary else f"{record.version} is current"
        self._reports: dict[str, Report | None] = {}
        self._lost_since: dict[str, float] = {}
        self._draining: set[str] = set()
        self._unreadable: set[str] = set()
        self.known = False
        self.names: set[str] = set()
        self.serving: list[Report] = []

    def update(self, seen: list[Seen]) -> None:
        """Process the newest reports."""
        now = time.monotonic()
        self.known = self.known or bool(seen)
        self._reports = {each.replica: each.report for each in seen}
        self._unreadable = {each.replica for each in seen if each.is_unreadable}
        self._draining |= {name for name, report in self._reports.items() if report and report.state == "draining"}
        self.names = (self.names | self._reports.keys()) - self._draining
        self._lost_since = {
            name: self._lost_since.get(name, now) for name in self.names if self._reports.get(name) is None
        }
        if self._replicas is not None:  # the number decides, so a replica that was lost may be replaced
            self.names -= {name for name, since in self._lost_since.items() if now - since >= _LOST_SECONDS}
        reports = [self._reports.get(name) for name in sorted(self.names)]
        self.serving = [report for report in reports if report is not None and self._is_serving(report)]

    @property
    def complete(self) -> bool:
        """Whether every replica serves the version."""
        return len(self.serving) == len(self.names) >= (self._replicas or 1)

    @property
    def failed(self) -> bool:
        """Whether every replica that does not serve the version has refused it or is lost."""
        behind = self._behind()
        return bool(behind) and all(self._has_refused(name) or self._is_lost(name) for name in behind)

    def describe(self) -> str:
        """The replicas that do not serve the version, with the reasons."""
        expected = max(len(self.names), self._replicas or 0)
        if not self.names:
            return (
                f"{self._fact}, but no replica reports: none is running, none may write to the store's folder, "
                "or the replicas share a Redis that --redis-url does not name"
            )
        missing = expected - len(self.serving)
        lines = [f"{self._fact}, but {missing} of {expected} replicas do not serve it:"]
        lines += [f"  {name} {self._reason(name)}" for name in self._behind()]
        if expected > len(self.names):
            lines.append(f"  only {len(self.names)} of {expected} replicas report")
        return "\n".join(lines)

    def _behind(self) -> list[str]:
        serving = {report.replica for report in self.serving}
        return sorted(self.names - serving)

    def _is_serving(self, report: Report) -> bool:
        found = (report.state, report.generation, report.version)
        if found != ("serving", self._record.generation, self._record.version):
            return False
        canary = self._canary_of(report)
        return self._record.canary is None or (canary is not None and canary.state == "open")

    def _has_refused(self, name: str) -> bool:
        return self._refusal(self._reports.get(name)) is not None

    def _refusal(self, report: Report | None) -> str | None:
        """The reason for which a replica refused the version or the canary."""
        if report is not None and report.state == "failed" and report.generation == self._record.generation:
            return report.refused.error if report.refused else "unknown reason"
        canary = self._canary_of(report)
        return canary.error if canary is not None else None

    def _canary_of(self, report: Report | None) -> CanaryReport | None:
        """The state of the record's canary in a replica."""
        canary = report.canary if report else None
        return canary if canary is not None and canary.generation == self._record.generation else None

    def _is_lost(self, name: str) -> bool:
        return name in self._lost_since and time.monotonic() - self._lost_since[name] >= _LOST_SECONDS

    def _reason(self, name: str) -> str:
        report = self._reports.get(name)
        if name in self._unreadable:
            return "has a report that cannot be read: it is damaged, or the replica has another --redis-secret"
        if report is None:
            return "stopped reporting: it was killed, or it hangs"
        serves = f"serves {report.version}: " if report.version else "serves no version: "
        if (refusal := self._refusal(report)) is not None:
            return serves + refusal
        if report.generation != self._record.generation:
            return f"{serves}it has not opened the new version yet (generation {report.generation})"
        return f"{serves}it has not opened the new version yet ({report.state})"
