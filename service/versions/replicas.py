"""The registry of replicas: each replica writes its report there, and `activate --wait` reads the reports.

Without Redis, a report is a file in the store's folder that its replica keeps locked. The lock ends with the process,
so a report of a killed replica is recognised because its file has no lock. Replicas that share a Redis server write
their reports to Redis, in keys that expire. A sorted set holds the time of each replica's last report, by the clock of
the Redis server. With a secret of the replicas, only reports that a replica with this secret wrote are used.

A replica that stops removes its entry. A replica that was killed stays in the registry for a minute without a report.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from recollect.service.errors import RedisError, StoreError
from recollect.service.redis_client import RedisClient
from recollect.service.store.store import Store
from recollect.service.versions.reports import Report, is_replica_name, parse_report, replica_name

# Size of every report file. All files have this size, so that one write replaces the whole report.
_FILE_BYTES = 8192
# Maximum time between two reports of a replica, and the lifetime of a report in Redis.
REPORT_SECONDS = 1.0
_LIFETIME_SECONDS = 10.0
# Time for which the registry remembers a replica that was killed.
_REMEMBERED_SECONDS = 60.0
# Seconds after which an unchanged report file is written again, so that its modification time is recent.
_TOUCH_SECONDS = 10.0
_MAX_REPLICAS = 10_000


class Seen(NamedTuple):
    """A replica that reported in the last minute.

    Attributes:
        replica: Its name.
        report: Its report; None if it does not report any more, or if its report cannot be read.
        is_unreadable: Whether it has a report that cannot be read: damaged content, or content of another secret.
    """

    replica: str
    report: Report | None
    is_unreadable: bool = False


class Replicas(Protocol):
    """The registry of the replicas of a store."""

    def report(self, report: Report) -> None:
        """Write the report of this replica; it replaces the previous report.

        Raises:
            OSError, RedisError: If the report cannot be written.
        """

    def leave(self) -> None:
        """Remove this replica from the registry, because it stops."""

    def seen(self) -> list[Seen]:
        """All replicas that reported in the last minute and have not left, sorted by name.

        Raises:
            RedisError: If the registry cannot be read.
        """


def replicas_of(store: Store, redis_client: RedisClient | None) -> Replicas:
    """The registry of a store's replicas: in Redis if the replicas share one, otherwise in the store's folder."""
    return RedisReplicas(redis_client) if redis_client else FolderReplicas(store.root / "replicas")


def reports(replicas: Replicas) -> list[Report]:
    """The reports of all running replicas, sorted by the replica's name.

    Raises:
        RedisError: If the registry cannot be read.
    """
    return [seen.report for seen in replicas.seen() if seen.report is not None]


def versions_in_use(replicas: Replicas, store: Store) -> set[str]:
    """The versions that running replicas serve or open.

    Raises:
        RedisError: If the registry cannot be read.
        StoreError: If the store or the report of a replica cannot be read.
    """
    seen = replicas.seen()
    for each in seen:
        if each.is_unreadable:
            raise StoreError(
                f"{each.replica}: expected a report that names the versions in use, found one that is damaged or has "
                "another --redis-secret; set the --redis-secret of the replicas"
            )
    found = [each.report for each in seen if each.report is not None]
    generations = {report.generation for report in found}
    opened = {entry.to for entry in store.log() if entry.generation in generations}
    canaries = {report.canary.version for report in found if report.canary is not None}
    return opened | canaries | {report.version for report in found if report.version is not None}


class FolderReplicas:
    """Stores reports as locked files in the folder `replicas` of the store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"{replica_name()}.json"
        self._file: int | None = None
        self._written: Report | None = None
        self._written_at = 0.0

    def report(self, report: Report) -> None:
        if self._file is not None and not self._is_own_file(self._file):  # the report file was removed
            self._close()
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = self._create_locked()
        if report != self._written or time.monotonic() - self._written_at > _TOUCH_SECONDS:
            os.pwrite(self._file, report.model_dump_json().encode().ljust(_FILE_BYTES), 0)
            self._written, self._written_at = report, time.monotonic()

    def leave(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._close()

    def seen(self) -> list[Seen]:
        found = (self._read(path) for path in sorted(self._folder.glob("*.json")) if is_replica_name(path.stem))
        return [seen for seen in found if seen is not None]

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = self._written = None

    def _create_locked(self) -> int:
        """Create and lock the report file. Try again if another process removed the file before it was locked."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._is_own_file(file):
                return file
            os.close(file)

    def _is_own_file(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def _read(self, path: Path) -> Seen | None:
        """Read the report of a replica. Try to remove the file of a replica that was killed more than a minute ago."""
        with contextlib.suppress(OSError):  # the replica leaves at this moment
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if path == self._path or not _is_unlocked(file):
                    return _seen(path.stem, os.pread(file, _FILE_BYTES, 0))
                # After a jump of the clock, the time may lie in the future. The file is then removed at once.
                if abs(time.time() - os.fstat(file).st_mtime) <= _REMEMBERED_SECONDS:
                    return Seen(path.stem, None)
                path.unlink()
            finally:
                os.close(file)
        return None


class RedisReplicas:
    """Stores reports in Redis: one Redis key for each replica, which expires, and a sorted set of all replicas."""

    def __init__(self, redis_client: RedisClient) -> None:
        self._redis = redis_client
        self._name, self._registry = replica_name(), redis_client.key("registry")

    def report(self, report: Report) -> None:
        def write(client: Any) -> Any:
            pipeline = client.pipeline().zadd(self._registry, {self._name: _redis_seconds(client)})
            return pipeline.set(key, sealed, px=int(1e3 * _LIFETIME_SECONDS)).execute()

        key = self._key(self._name)
        sealed = self._redis.seal(key, report.model_dump_json().encode())
        self._redis.execute(write)

    def leave(self) -> None:
        with contextlib.suppress(RedisError):
            self._redis.execute(
                lambda client: (
                    client.pipeline().zrem(self._registry, self._name).delete(self._key(self._name)).execute()
                )
            )

    def seen(self) -> list[Seen]:
        def read(client: Any) -> tuple[list[str], list[Any]]:
            now = _redis_seconds(client)
            client.zremrangebyscore(self._registry, "-inf", now - _REMEMBERED_SECONDS)
            client.zremrangebyscore(self._registry, now + _REMEMBERED_SECONDS, "+inf")  # written by no replica
            members = client.zrange(self._registry, 0, _MAX_REPLICAS - 1)
            names = sorted(filter(is_replica_name, (member.decode(errors="replace") for member in members)))
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.getrange(self._key(name), 0, _FILE_BYTES - 1)
            return names, pipeline.execute(raise_on_error=False)

        names, values = self._redis.execute(read)
        return [self._open(name, value) for name, value in zip(names, values, strict=True)]

    def _open(self, name: str, value: bytes | Exception) -> Seen:
        if value == b"":  # the key does not exist
            return Seen(name, None)
        # A value is an error if the key holds another type than a string.
        content = self._redis.open(self._key(name), value, "replica_report") if isinstance(value, bytes) else None
        return _seen(name, content)

    def _key(self, name: str) -> str:
        return self._redis.key("report", name)


def _seen(name: str, content: bytes | None) -> Seen:
    report = None if content is None else parse_report(content, name)
    return Seen(name, report, is_unreadable=report is None)


def _redis_seconds(client: Any) -> float:
    """The time of the Redis server: the clocks of the replicas can differ."""
    seconds, microseconds = client.time()
    return float(seconds + microseconds / 1e6)


def _is_unlocked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True
