"""Replicas tell what they serve, and whoever activates a version reads it.

They tell in the store's own folder, in files that each locks while it lives: a killed replica's word dies with it,
whatever the clocks say. Replicas that share a Redis tell it there, in keys that expire.
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
from service.redis_client import RedisLink
from service.store.store import Store

# A report's file has this size whatever it says, so that one write replaces it.
_FILE_BYTES = 8192
_MOST_REASON = 1_000
# How often a replica tells, even if it looks for another version less often; in Redis it is forgotten after so long.
REPORT_SECONDS = 5.0
_FORGOTTEN_SECONDS = 15.0


class Refusal(BaseModel):
    """A version that a replica would not serve, and why."""

    version: str
    error: str
    at: datetime


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
    return _named(os.getpid())


@functools.cache
def _named(process: int) -> str:
    """Host, process, and what tells apart containers that share both."""
    host = re.sub(r"[^0-9A-Za-z.-]", "-", socket.gethostname())[:128]
    return f"{host}-{process}-{secrets.token_hex(2)}"


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


def replicas_of(store: Store, link: RedisLink | None) -> Replicas:
    """Where a store's replicas tell what they serve: in the Redis that they share, if they do, else beside it."""
    return RedisReplicas(link) if link else FolderReplicas(store.root / "replicas")


class FolderReplicas:
    """Reports in `store/replicas/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._path = folder / f"{replica_name()}.json"
        self._told: Report | None = None

    def tell(self, report: Report) -> None:
        if self._file is not None and not self._is_ours(self._file):  # somebody removed it
            os.close(self._file)
            self._file = self._told = None
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = self._locked()
        if report != self._told:
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

    def _locked(self) -> int:
        """The file, locked; a reader that found it before it was may have removed it, so that is looked at."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._is_ours(file):
                return file
            os.close(file)

    def _is_ours(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False

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
    """Reports in Redis: a key each, which expires, and a set of their names."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._name, self._all = replica_name(), link.key("replicas")

    def tell(self, report: Report) -> None:
        def write(client: Any) -> Any:
            pipeline = client.pipeline().sadd(self._all, self._name)
            key, milliseconds = self._link.key("replica", self._name), int(1e3 * _FORGOTTEN_SECONDS)
            return pipeline.set(key, report.model_dump_json(), px=milliseconds).execute()

        self._link.ask(write)

    def leave(self) -> None:
        with contextlib.suppress(RedisError):
            self._link.ask(lambda client: client.delete(self._link.key("replica", self._name)))

    def reports(self) -> list[Report]:
        names = sorted(name.decode() for name in self._link.ask(lambda client: client.smembers(self._all)))
        keys = [self._link.key("replica", name) for name in names]
        told = self._link.ask(lambda client: client.mget(keys)) if keys else []
        gone = [name for name, each in zip(names, told, strict=True) if each is None]
        if gone:
            self._link.ask(lambda client: client.srem(self._all, *gone))
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
