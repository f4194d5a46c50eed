"""The open versions of a process, and the leases that keep them open while requests use them.

A request takes one lease of one version, so this version gives the whole answer. A batch holds leases of its own,
because it can run longer than a cancelled request. After a swap the previous version stays open as the standby, so that
a rollback needs no opening. A retired version is closed when its last lease is released.

A candidate is open beside the current version. A request may name any of the open versions.

Closing a version unmaps gigabytes, so the follower's thread closes versions. If Python's reference counts decided, the
thread that drops the last reference would unmap the files, perhaps a thread that answers requests.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from recollect.core.errors import NotReadyError, ServiceError, VersionNotOpenError
from recollect.edits.live import LivePredictor


@dataclass(eq=False)
class OpenVersion:
    """A predictor, the time when it became current, and the number of its leases."""

    predictor: LivePredictor
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    leases: int = 0


class Lease:
    """One use of a version, whose predictor stays open until the release; usable as a context manager."""

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

    def __enter__(self) -> LivePredictor:
        return self.predictor

    def __exit__(self, *_: object) -> None:
        self.release()


class OpenVersions:
    """The current version, the candidate, the standby, and retired versions in use; thread-safe.

    Requests take leases here. The follower opens, replaces and closes the versions.
    """

    def __init__(self) -> None:
        self.draining = False  # whether this process stops; requests in progress are still answered
        self.leased_at = time.monotonic()  # when a request took the last lease
        self._lock = threading.Lock()
        self._retired: list[OpenVersion] = []
        self.current: OpenVersion | None = None  # answers requests that name no version
        self.candidate: OpenVersion | None = None
        self.standby: OpenVersion | None = None

    def lease(self, version: str | None = None) -> Lease:
        """Take a lease of the open version with this name; None means the current version.

        Raises:
            NotReadyError: If no version is open yet.
            VersionNotOpenError: If the version is not open.
        """
        with self._lock:
            opened = self.require_current()
            if version is not None and version != opened.predictor.version:
                others = {other.predictor.version: other for other in self._open()}
                if version not in others:
                    raise VersionNotOpenError(version, [*others])
                opened = others[version]
            self.leased_at = time.monotonic()
            return Lease(opened, self._lock)

    def require_current(self) -> OpenVersion:
        """The current version, for reading facts about it without a lease; `NotReadyError` if none is open yet."""
        if (current := self.current) is None:
            raise NotReadyError("no bundle is loaded yet; try again shortly")
        return current

    def version(self) -> str | None:
        """The name of the current version; None before the first version is open."""
        current = self.current
        return current.predictor.version if current else None

    def engine_problem(self) -> str | None:
        """The reason why the engine of the current version does not answer; None if it answers, or there is none."""
        current = self.current
        engine = None if current is None else current.predictor.engine
        return None if engine is None else engine.problem

    def encoder_problem(self) -> str | None:
        """The reason why the server of the current version's vectors does not answer, as `engine_problem`."""
        current = self.current
        return None if current is None else current.predictor.encoder.problem

    def problem(self) -> ServiceError | None:
        """The reason why the current version cannot answer at present; None if it can, or none is open."""
        current = self.current
        return None if current is None else current.predictor.problem

    def names(self) -> list[str]:
        """The names of the open versions, the current one first."""
        return [predictor.version for predictor in self.open_predictors()]

    def make_current(self, predictor: LivePredictor) -> None:
        """Make a predictor current: that of the candidate or of the standby, or a new one.

        The previous version becomes the standby, and the previous standby is retired.
        """
        with self._lock:
            opened = self._take(predictor)
            opened.since = datetime.now(UTC)
            if self.standby is not None:
                self._retired.append(self.standby)
            self.current, self.standby = opened, self.current

    def add_candidate(self, predictor: LivePredictor) -> None:
        """Make a predictor the candidate: that of the standby, or a new one."""
        with self._lock:
            self.candidate = self._take(predictor)

    def retire(self, opened: OpenVersion) -> None:
        """Retire the candidate or the standby."""
        with self._lock:
            self._retired.append(self._take(opened.predictor))

    def open_predictors(self) -> list[LivePredictor]:
        with self._lock:
            return [version.predictor for version in self._open()]

    def lease_open(self, standby: bool = True) -> list[Lease]:
        """Take leases of the current version and the candidate, and of the standby."""
        with self._lock:
            return [Lease(version, self._lock) for version in self._open() if standby or version is not self.standby]

    def close_unused(self) -> list[str]:
        """Close the retired versions without leases, and return their names."""
        with self._lock:
            unused = [version for version in self._retired if version.leases == 0]
            self._retired = [version for version in self._retired if version.leases > 0]
        for version in unused:
            version.predictor.close()
        return [version.predictor.version for version in unused]

    def _open(self) -> list[OpenVersion]:
        """The versions that a request may name; the caller holds the lock."""
        return [version for version in (self.current, self.candidate, self.standby) if version is not None]

    def _take(self, predictor: LivePredictor) -> OpenVersion:
        """The open version of a predictor, which is neither the candidate nor the standby any more."""
        for opened in (self.candidate, self.standby):
            if opened is not None and opened.predictor is predictor:
                if opened is self.candidate:
                    self.candidate = None
                else:
                    self.standby = None
                return opened
        return OpenVersion(predictor)
