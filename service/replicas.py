"""Replicas tell what they serve, and whoever activates a version reads it.

They tell in the store's own folder, in files that each locks while it lives: a killed replica's word dies with it,
whatever the clocks say. Replicas that share a Redis tell it there, in keys that expire.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import RedisError
from service.redis_link import RedisLink

# A report's file has this size whatever it says, so that one write replaces it.
_FILE_BYTES = 8192
_MOST_REASON = 2_000
# A replica in Redis is forgotten after this many of its reports did not come, and after so many seconds at least.
_MISSED_REPORTS, _SHORTEST_SECONDS = 5, 10.0


class Refusal(BaseModel):
    """A version that a replica would not serve, and why."""

    version: str
    error: str


class Report(BaseModel):
    """What one replica, a process, says of itself."""

    model_config = ConfigDict(frozen=True)

    replica: str = Field(description="its host and process")
    state: Literal["serving", "draining"]
    version: str
    since: datetime
    refused: Refusal | None = Field(None, description="the version it would not serve in place of this one")


def replica_name() -> str:
    """This process's name among its store's replicas."""
    return f"{re.sub(r'[^0-9A-Za-z.-]', '-', socket.gethostname())[:128]}-{os.getpid()}"


class Replicas(Protocol):
    """Where replicas tell what they serve."""

    def tell(self, report: Report) -> None:
        """Replace what this replica said.

        Raises:
            OSError, RedisError: If it cannot be written.
        """

    def leave(self) -> None:
        """Withdraw it: the replica stops."""

    def reports(self) -> list[Report]:
        """What all living replicas say, by name.

        Raises:
            RedisError: If it cannot be read.
        """


class FolderReplicas:
    """Reports in `store/replicas/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._path = folder / f"{replica_name()}.json"
        self._told: Report | None = None

    def tell(self, report: Report) -> None:
        if report == self._told:
            return
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(self._file, report.model_dump_json().encode().ljust(_FILE_BYTES), 0)
        self._told = report

    def leave(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = self._told = None

    def reports(self) -> list[Report]:
        found = (self._read(path) for path in sorted(self._folder.glob("*.json")))
        return [report for report in found if report is not None]

    def _read(self, path: Path) -> Report | None:
        """What a living replica says; a dead one's file is removed where that is allowed."""
        with contextlib.suppress(OSError, ValidationError):  # it left, or is just beginning
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if path == self._path or not _lock_is_free(file):
                    return Report.model_validate_json(os.pread(file, _FILE_BYTES, 0))
                path.unlink()
            finally:
                os.close(file)
        return None


class RedisReplicas:
    """Reports in Redis, each renewed as often as its replica looks for the current version."""

    def __init__(self, link: RedisLink, poll_seconds: float) -> None:
        self._link = link
        self._key = link.key("replica", replica_name())
        self._milliseconds = int(1e3 * max(_SHORTEST_SECONDS, _MISSED_REPORTS * poll_seconds))

    def tell(self, report: Report) -> None:
        self._link.ask(lambda client: client.set(self._key, report.model_dump_json(), px=self._milliseconds))

    def leave(self) -> None:
        with contextlib.suppress(RedisError):
            self._link.ask(lambda client: client.delete(self._key))

    def reports(self) -> list[Report]:
        keys = self._link.ask(lambda client: sorted(client.scan_iter(match=self._link.key("replica", "*"), count=1000)))
        told = self._link.ask(lambda client: client.mget(keys)) if keys else []
        found = []
        for each in told:
            with contextlib.suppress(ValidationError):
                found += [Report.model_validate_json(each)] if each is not None else []
        return found


def shortened(reason: str) -> str:
    """A reason that fits a report."""
    return reason if len(reason) <= _MOST_REASON else reason[:_MOST_REASON] + "..."


def _lock_is_free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True
