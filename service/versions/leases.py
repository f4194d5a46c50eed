"""Leases: a version that is no longer current stays open until its last lease is released.

A request holds a lease until its answer is complete. A batch holds leases of its own, because it can run longer than a
request that was cancelled. Closing a version unmaps gigabytes, so a background thread does it. With Python's reference
counts alone, the thread that drops the last reference would do it, and that thread could be answering requests.
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
    """One use of a version: a context manager, or an object with `release`.

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
        """Another lease of the same version, for work that can outlive this lease."""
        with self._lock:
            if self._version is None:
                raise ValueError("expected a lease that is held, found one that was released")
            return Lease(self._version, self._lock)

    def release(self) -> None:
        """End the use; a second call does nothing."""
        with self._lock:
            if self._version is not None:
                self._version.leases -= 1
                self._version = None

    def __enter__(self) -> Predictor:
        return self.predictor

    def __exit__(self, *_: object) -> None:
        self.release()


class Leases:
    """The current version and the retired versions that are still in use; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._retired: list[OpenVersion] = []
        self.current: OpenVersion | None = None

    def lease(self) -> Lease:
        """A lease of the current version.

        Raises:
            NotReadyError: If no version is open yet.
        """
        with self._lock:
            return Lease(self.require_current(), self._lock)

    def require_current(self) -> OpenVersion:
        """The current version, to read facts about it.

        Raises:
            NotReadyError: If no version is open yet.
        """
        if (current := self.current) is None:
            raise NotReadyError("no bundle is loaded yet; try again shortly")
        return current

    def replace(self, predictor: Predictor) -> None:
        """Make a predictor current and retire the previous one."""
        opened = OpenVersion(predictor)
        with self._lock:
            if self.current is not None:
                self._retired.append(self.current)
            self.current = opened

    def close_unused(self) -> int:
        """Close the retired versions without a lease, and return how many there were."""
        with self._lock:
            unused = [version for version in self._retired if version.leases == 0]
            self._retired = [version for version in self._retired if version.leases > 0]
        for version in unused:
            version.predictor.close()
        return len(unused)
