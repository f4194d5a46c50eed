"""The open versions of a process, and the leases that keep them open while requests use them.

A request takes one lease of one version, so this version gives the whole answer. A batch holds leases of its own,
because it can run longer than a cancelled request. After a swap the previous version stays open as the standby, so that
a rollback needs no opening. A retired version is closed when its last lease is released.

A canary is open beside the current version, and the requests of its share take leases of the canary.

Closing a version unmaps gigabytes, so the follower's thread closes versions. If Python's reference counts decided, the
thread that drops the last reference would unmap the files, perhaps a thread that answers requests.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime

from recollect.service.bundle.manifest import Manifest
from recollect.service.canary.trial import Trial
from recollect.service.errors import NotReadyError
from recollect.service.predictor.predictor import Predictor
from recollect.service.telemetry.version_metrics import MetricsByVersion, RequestMetrics


@dataclass(eq=False)
class OpenVersion:
    """A predictor, its metrics, the time when it became current, and the number of its leases."""

    predictor: Predictor
    metrics: RequestMetrics
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    leases: int = 0


class Lease:
    """One use of a version; usable as a context manager, or through `release`.

    Attributes:
        predictor: The version's predictor; usable until the lease is released.
        metrics: The version's metrics.
        trial: The trial of a canary, if there was one when the lease was taken.
    """

    __slots__ = ("_lock", "_version", "metrics", "predictor", "trial")

    def __init__(self, version: OpenVersion, lock: threading.Lock, trial: Trial | None = None) -> None:
        """Count the lease; the caller holds `lock`."""
        version.leases += 1
        self.predictor, self.metrics, self.trial = version.predictor, version.metrics, trial
        self._version: OpenVersion | None = version
        self._lock = lock

    def share(self) -> Lease:
        """Take another lease of the same version, for work that can last longer than this lease."""
        with self._lock:
            if self._version is None:
                raise ValueError("expected a lease in use, found a released lease")
            return Lease(self._version, self._lock, self.trial)

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


class OpenVersions:
    """The current version, the standby, the canary, and retired versions in use; thread-safe.

    Requests take leases here. The follower opens, replaces and closes the versions.

    Args:
        metrics: The metrics of the open versions.

    Attributes:
        current: The version that answers new requests; None before the first version is open.
        standby: The version that was current before, if it is still open.
        canary: The version that is tried beside the current version, if there is one.
        trial: The trial of this version.
        draining: Whether this process stops; requests in progress are still answered.
    """

    def __init__(self, metrics: MetricsByVersion) -> None:
        self.draining = False
        self._metrics = metrics
        self._lock = threading.Lock()
        self._retired: list[OpenVersion] = []
        self.current: OpenVersion | None = None
        self.standby: OpenVersion | None = None
        self.canary: OpenVersion | None = None
        self.trial: Trial | None = None

    def lease(self, key: str | None = None) -> Lease:
        """Take a lease of the current version, or of the canary if a request with this key belongs to its share.

        Raises:
            NotReadyError: If no version is open yet.
        """
        with self._lock:
            version, trial = self.require_current(), self.trial
            if trial is not None and self.canary and key is not None and not trial.shadow and trial.includes(key):
                version = self.canary
            return Lease(version, self._lock, trial)

    def lease_canary(self, trial: Trial) -> Lease | None:
        """Take a lease of the canary; None if its trial has ended."""
        with self._lock:
            if self.canary is None or self.trial is not trial or trial.breaker.stopped is not None:
                return None
            return Lease(self.canary, self._lock, trial)

    def require_current(self) -> OpenVersion:
        """The current version, for reading facts about it without a lease.

        Raises:
            NotReadyError: If no version is open yet.
        """
        if (current := self.current) is None:
            raise NotReadyError("no bundle is loaded yet; try again shortly")
        return current

    def serving(self) -> tuple[Manifest, datetime]:
        """The manifest of the current version, and the time since which it is current.

        Raises:
            NotReadyError: If no version is open yet.
        """
        current = self.require_current()
        return current.predictor.manifest, current.since

    def version(self) -> str | None:
        """The name of the current version; None before the first version is open."""
        current = self.current
        return current.predictor.version if current else None

    def engine_problem(self) -> str | None:
        """The reason why the engine of the current version does not answer; None if it answers, or there is none."""
        current = self.current
        keys = None if current is None else current.predictor.keys
        return None if keys is None else keys.problem

    def replace(self, predictor: Predictor) -> None:
        """Make a predictor current. The previous version becomes the standby, and the previous standby is retired."""
        opened = self._open_version(predictor)
        with self._lock:
            self._make_current(opened)

    def exchange_with_standby(self) -> None:
        """Make the standby current, and the current version the standby."""
        with self._lock:
            if self.standby is None:
                raise ValueError("expected a standby, found none")
            self.standby.since = datetime.now(UTC)
            self.current, self.standby = self.standby, self.current

    def start_trial(self, trial: Trial, predictor: Predictor | None = None) -> None:
        """Start the trial of a canary. Without a predictor, the open canary continues with the new trial."""
        opened = self._open_version(predictor) if predictor else self.canary
        with self._lock:
            if self.canary is not None and self.canary is not opened:
                self._retired.append(self.canary)
            self.canary, self.trial = opened, trial

    def end_trial(self) -> None:
        """Retire the canary."""
        with self._lock:
            if self.canary is not None:
                self._retired.append(self.canary)
            self.canary = self.trial = None

    def promote(self) -> None:
        """Make the canary current. The previous version becomes the standby, and the previous standby is retired."""
        with self._lock:
            if self.canary is None:
                raise ValueError("expected a canary, found none")
            self.canary.since = datetime.now(UTC)
            self._make_current(self.canary)
            self.canary = self.trial = None

    def retire_standby(self) -> bool:
        """Retire the standby, and return whether there was one."""
        with self._lock:
            standby, self.standby = self.standby, None
            if standby is not None:
                self._retired.append(standby)
        return standby is not None

    def open_predictors(self) -> list[Predictor]:
        """The predictors of the current version, the standby and the canary."""
        with self._lock:
            opened = (self.current, self.standby, self.canary)
            return [version.predictor for version in opened if version is not None]

    def lease_open(self, standby: bool = True) -> list[Lease]:
        """Take leases of the current version and the canary, and of the standby."""
        with self._lock:
            opened = (self.current, self.canary, self.standby if standby else None)
            return [Lease(version, self._lock) for version in opened if version is not None]

    def close_unused(self) -> int:
        """Close the retired versions without leases, and return their number."""
        with self._lock:
            unused = [version for version in self._retired if version.leases == 0]
            self._retired = [version for version in self._retired if version.leases > 0]
            still_open = [self.current, self.standby, self.canary, *self._retired]
        for version in unused:
            version.predictor.close()
        if unused:
            self._metrics.keep_only({version.predictor.version for version in still_open if version is not None})
        return len(unused)

    def _open_version(self, predictor: Predictor) -> OpenVersion:
        info = predictor.manifest.probabilities
        expected = None if info is None else info.mean_top_probability
        return OpenVersion(predictor, self._metrics.requests_of(predictor.version, expected))

    def _make_current(self, version: OpenVersion) -> None:
        if self.standby is not None:
            self._retired.append(self.standby)
        self.current, self.standby = version, self.current
