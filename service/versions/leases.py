"""Leases: a version stays open while requests use it.

A request takes one lease of one version, so this version gives the whole answer. A batch holds leases of its own,
because it can run longer than a cancelled request. After a swap the previous version stays open as the standby, so that
a rollback needs no opening. A retired version is closed when its last lease is released.

Closing a version unmaps gigabytes, so the follower's thread closes versions. If Python's reference counts decided, the
thread that drops the last reference would unmap the files, perhaps a thread that answers requests.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime

from service.errors import NotReadyError
from service.predictor.predictor import Predictor


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
    """The current version, the standby, and the retired versions that are still in use; thread-safe.

    Attributes:
        current: The version that answers new requests; None before the first version is open.
        standby: The version that was current before, if it is still open.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._retired: list[OpenVersion] = []
        self.current: OpenVersion | None = None
        self.standby: OpenVersion | None = None

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
        """Make a predictor current. The previous version becomes the standby, and the previous standby is retired."""
        opened = OpenVersion(predictor)
        with self._lock:
            if self.standby is not None:
                self._retired.append(self.standby)
            self.current, self.standby = opened, self.current

    def exchange_with_standby(self) -> None:
        """Make the standby current, and the current version the standby."""
        with self._lock:
            if self.standby is None:
                raise ValueError("expected a standby, found none")
            self.standby.since = datetime.now(UTC)
            self.current, self.standby = self.standby, self.current

    def retire_standby(self) -> bool:
        """Retire the standby, and return whether there was one."""
        with self._lock:
            standby, self.standby = self.standby, None
            if standby is not None:
                self._retired.append(standby)
        return standby is not None

    def open_predictors(self) -> list[Predictor]:
        """The predictors of the current version and of the standby."""
        with self._lock:
            return [version.predictor for version in (self.current, self.standby) if version is not None]

    def close_unused(self) -> int:
        """Close the retired versions without leases, and return their number."""
        with self._lock:
            unused = [version for version in self._retired if version.leases == 0]
            self._retired = [version for version in self._retired if version.leases > 0]
        for version in unused:
            version.predictor.close()
        return len(unused)
