"""Reports of replicas: each replica reports the version that it serves, and `activate --wait` reads the reports.

Without Redis, a report is a file in the store's folder that its replica keeps locked. The lock ends with the process,
so a report of a killed replica is recognised because its file has no lock. Replicas that share a Redis server write
their reports to Redis, in keys that expire.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import secrets
import socket
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import RedisError
from service.redis_client import RedisClient
from service.store.store import Store

# Size of every report file. All files have this size, so that one write replaces the whole report.
_FILE_BYTES = 8192
_MAX_REASON_CHARACTERS = 1_000
# Maximum time between two reports of a replica, and the lifetime of a report in Redis.
REPORT_SECONDS = 5.0
_LIFETIME_SECONDS = 15.0


class Refusal(BaseModel):
    """A version that a replica refused to serve, and the reason."""

    version: str
    error: str
    at: datetime


class Report(BaseModel):
    """The report of one replica. A replica is one process."""

    model_config = ConfigDict(frozen=True)

    replica: str = Field(description="name of the replica: host name, process id and random digits")
    state: Literal["serving", "draining"]
    version: str
    since: datetime
    refused: Refusal | None = Field(
        None, description="the current version, if the replica refused to serve it, with the reason"
    )


def replica_name() -> str:
    """The name of this process among the replicas of its store."""
    return _name_of(os.getpid())


@functools.cache
def _name_of(process: int) -> str:
    """Host name, process id and random digits: containers can have equal host names and process ids."""
    host = re.sub(r"[^0-9A-Za-z.-]", "-", socket.gethostname())[:128]
    return f"{host}-{process}-{secrets.token_hex(2)}"


class Replicas(Protocol):
    """The place where replicas write their reports."""

    def report(self, report: Report) -> None:
        """Write the report of this replica; it replaces the previous report.

        Raises:
            OSError, RedisError: If the report cannot be written.
        """

    def leave(self) -> None:
        """Remove the report of this replica, because the replica stops."""

    def reports(self) -> list[Report]:
        """The reports of all running replicas, sorted by the replica's name.

        Raises:
            RedisError: If the reports cannot be read.
        """


def replicas_of(store: Store, redis_client: RedisClient | None) -> Replicas:
    """The reports of the replicas of a store: in Redis if the replicas share one, otherwise in the store's folder."""
    return RedisReplicas(redis_client) if redis_client else FolderReplicas(store.root / "replicas")


def versions_in_use(replicas: Replicas) -> set[str]:
    """The versions that running replicas serve.

    Raises:
        RedisError: If the reports cannot be read.
    """
    return {report.version for report in replicas.reports()}


class FolderReplicas:
    """Stores reports as locked files in the folder `replicas` of the store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"{replica_name()}.json"
        self._file: int | None = None
        self._written: Report | None = None

    def report(self, report: Report) -> None:
        if self._file is not None and not self._is_own_file(self._file):  # the report file was removed
            self._close()
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = self._create_locked()
        if report != self._written:
            os.pwrite(self._file, report.model_dump_json().encode().ljust(_FILE_BYTES), 0)
            self._written = report

    def leave(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._close()

    def reports(self) -> list[Report]:
        found = (self._read(path) for path in sorted(self._folder.glob("*.json")))
        return [report for report in found if report is not None]

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

    def _read(self, path: Path) -> Report | None:
        """Read the report of a running replica; try to remove the file of a replica that no longer runs."""
        with contextlib.suppress(OSError, ValidationError):  # the replica stops or starts at this moment
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if path == self._path or not _is_unlocked(file):
                    return Report.model_validate_json(os.pread(file, _FILE_BYTES, 0))
                path.unlink()
            finally:
                os.close(file)
        return None


class RedisReplicas:
    """Stores reports in Redis: one Redis key for each replica, which expires, and a set of the replicas' names."""

    def __init__(self, redis_client: RedisClient) -> None:
        self._redis = redis_client
        self._name, self._names = replica_name(), redis_client.key("replicas")

    def report(self, report: Report) -> None:
        def write(client: Any) -> Any:
            pipeline = client.pipeline().sadd(self._names, self._name)
            key, milliseconds = self._redis.key("replica", self._name), int(1e3 * _LIFETIME_SECONDS)
            return pipeline.set(key, report.model_dump_json(), px=milliseconds).execute()

        self._redis.execute(write)

    def leave(self) -> None:
        with contextlib.suppress(RedisError):
            self._redis.execute(lambda client: client.delete(self._redis.key("replica", self._name)))

    def reports(self) -> list[Report]:
        names = sorted(name.decode() for name in self._redis.execute(lambda client: client.smembers(self._names)))
        keys = [self._redis.key("replica", name) for name in names]
        values = self._redis.execute(lambda client: client.mget(keys)) if keys else []
        expired = [name for name, value in zip(names, values, strict=True) if value is None]
        if expired:
            self._redis.execute(lambda client: client.srem(self._names, *expired))
        found = []
        for value in values:
            with contextlib.suppress(ValidationError):
                found += [Report.model_validate_json(value)] if value is not None else []
        return found


def shorten(reason: str) -> str:
    """Shorten a reason to a length that fits into a report."""
    return reason if len(reason) <= _MAX_REASON_CHARACTERS else reason[:_MAX_REASON_CHARACTERS] + "..."


def _is_unlocked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True
