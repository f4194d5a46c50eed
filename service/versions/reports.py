"""Reports of the replicas: each replica writes its open versions regularly, and `activate --wait` reads the reports.

A report is a small file in the folder `replicas` of the store. Replicas that share a Redis server write their reports
to one hash of this server instead. A replica that stops removes its report. The report of a replica that was killed
becomes stale, and is removed a minute later.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import socket
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from recollect.core.errors import NotServedError, RedisError, StoreError
from recollect.core.system.background import BackgroundThread
from recollect.core.system.console import printable
from recollect.service.redis_client import RedisClient
from recollect.service.versions.open_versions import OpenVersions
from recollect.store.activations import ActivationRecord, Version
from recollect.store.files import open_file, temporary_path
from recollect.store.store import Store

# Maximum time between two reports of a replica.
_REPORT_SECONDS = 1.0
# Time between two readings of the reports while a command waits for the replicas.
_POLL_SECONDS = 0.1
# If no replica reports for this time, no replica is running.
_NO_REPLICA_SECONDS = 3.0
# Age from which on a report does not count, and age from which on it is removed.
_STALE_SECONDS, _KEPT_SECONDS = 10.0, 60.0
_MAX_REASON_CHARACTERS = 1_000
_MAX_FILE_BYTES = 16_384
_REPLICA_NAME = re.compile(r"[0-9A-Za-z.-]{1,160}")


class Report(BaseModel):
    """The report of one replica. A replica is one process."""

    model_config = ConfigDict(frozen=True)

    replica: str = Field(description="name of the replica: host name, process id and random digits")
    version: Version | None = Field(None, description="the version that the replica serves; null if it opens its first")
    open: tuple[Version, ...] = Field((), description="all versions that a request may name: the served version first")
    generation: int | None = Field(None, description="generation of the activation that the replica has carried out")
    refused: int | None = Field(None, description="generation of the activation that the replica cannot carry out")
    problem: Annotated[str, AfterValidator(printable)] | None = Field(None, description="the reason, if there is one")


class FolderReports:
    """The reports of a store's replicas as files. The time of a file is the time of its report.

    The age of a report is measured with the clock of the file system, because the clocks of hosts can differ.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, report: Report) -> None:
        """Write the report of this replica; it replaces the previous report."""
        self._folder.mkdir(exist_ok=True)  # fails if there is no store, which `temporary_path` would create
        path = self._path(report.replica)
        with temporary_path(path) as temporary:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(report.model_dump_json())
            temporary.replace(path)

    def remove(self) -> None:
        """Remove the report of this replica, because it stops."""
        with contextlib.suppress(OSError):
            self._path(replica_name()).unlink()

    def read(self, seconds: float | None = None) -> list[Report]:
        """The reports of the last ten seconds, or of so many, sorted by replica. Other content is ignored."""
        if not (paths := sorted(self._folder.glob("*.json"))):
            return []
        now = self._now()
        reports = (self._read(path, now, seconds or _STALE_SECONDS) for path in paths)
        return [report for report in reports if report is not None]

    def _now(self) -> float:
        """The time that a new file gets; that of this host if it may not write to the folder."""
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                return os.fstat(file.fileno()).st_mtime
        except OSError:
            return time.time()

    def _path(self, replica: str) -> Path:
        return self._folder / f"{replica}.json"

    def _read(self, path: Path, now: float, seconds: float) -> Report | None:
        try:
            with open_file(path) as descriptor:
                age, content = now - os.fstat(descriptor).st_mtime, os.read(descriptor, _MAX_FILE_BYTES)
        except (FileNotFoundError, StoreError):  # the replica stops at this moment, or it is no file
            return None
        report = _parsed(path.stem, content)
        if report is not None and abs(age) > _KEPT_SECONDS:  # the folder may be a link to one with files of others
            with contextlib.suppress(OSError):
                path.unlink()
        return report if abs(age) <= seconds else None


class RedisReports:
    """Reports in a hash in Redis, with the methods of `FolderReports`.

    Their times are those of the Redis server, because the clocks of the replicas can differ.
    """

    def __init__(self, redis_client: RedisClient) -> None:
        self._redis, self._key = redis_client, redis_client.key("reports")

    def write(self, report: Report) -> None:
        def write(client: Any) -> None:
            content = f"{_redis_seconds(client):.3f} {report.model_dump_json()}"
            client.pipeline().hset(self._key, report.replica, content).expire(self._key, round(_KEPT_SECONDS)).execute()

        self._redis.execute(write, "reports")

    def remove(self) -> None:
        with contextlib.suppress(RedisError):
            self._redis.execute(lambda client: client.hdel(self._key, replica_name()))

    def read(self, seconds: float | None = None) -> list[Report]:
        def read(client: Any) -> tuple[dict[bytes, bytes], float]:
            return client.hgetall(self._key), _redis_seconds(client)

        contents, now = self._redis.execute(read)
        reports, outdated = list[Report | None](), list[bytes]()
        for name, content in sorted(contents.items()):
            written, _, text = content.partition(b" ")
            with contextlib.suppress(ValueError):  # another program has written the value
                age = now - float(written)
                if abs(age) > _KEPT_SECONDS:
                    outdated.append(name)
                elif abs(age) <= (seconds or _STALE_SECONDS):
                    reports.append(_parsed(name.decode(errors="replace"), text))
        if outdated:
            self._redis.execute(lambda client: client.hdel(self._key, *outdated))
        return [report for report in reports if report is not None]


Reports = FolderReports | RedisReports


def reports_of(store: Store, redis_client: RedisClient | None) -> Reports:
    """The reports of a store's replicas: in Redis if the replicas share one, otherwise in the store's folder."""
    return RedisReports(redis_client) if redis_client else FolderReports(store.root / "replicas")


def wait_for_replicas(
    store: Store, reports: Reports, record: ActivationRecord, seconds: float, replicas: int | None = None
) -> list[Report]:
    """Wait at most so many seconds until every replica has carried out an activation, and return the reports.

    `replicas` is the number that must carry it out. None means all that report, also those that are killed meanwhile.

    Raises:
        NotServedError: If every replica that is behind refuses a version or was killed, the versions are not open in
            time, or there is another activation; names the replicas and the reasons.
        OSError, RedisError: If the reports cannot be read until the time is over.
    """
    start, known = time.monotonic(), set[str]()
    while True:
        waited, alive, killed, error = time.monotonic() - start, list[Report](), list[Report](), None
        try:
            alive = reports.read()
            names = {report.replica for report in alive}
            known |= names
            if replicas is None and (silent := known - names):
                killed = [report for report in reports.read(_KEPT_SECONDS) if report.replica in silent]
        except (OSError, RedisError) as failure:
            error = failure
        behind = [report for report in alive if report.generation != record.generation]
        if not behind and not killed and len(alive) >= (replicas or 1):
            return alive
        _require_last(store, record)
        failed = bool(behind or killed) and all(report.refused == record.generation for report in behind)
        none_runs = not known and error is None and replicas is None
        if failed or waited >= (min(seconds, _NO_REPLICA_SECONDS) if none_runs else seconds):
            raise error or NotServedError(_describe(record, alive, behind, killed, replicas or 0))
        time.sleep(_POLL_SECONDS)


def _require_last(store: Store, record: ActivationRecord) -> None:
    last = None
    with contextlib.suppress(StoreError, OSError):  # the next check tries again
        last = store.activation()
    if last is not None and last.generation > record.generation:
        raise NotServedError(
            f"{record.version} is not current any more: {last.by} made {last.version} current "
            f"(generation {last.generation}); see `recollect log`"
            if last.version != record.version
            else f"{last.by} changed the candidate meanwhile (generation {last.generation}); see `recollect log`"
        )


def _describe(
    record: ActivationRecord, alive: list[Report], behind: list[Report], killed: list[Report], replicas: int
) -> str:
    """The replicas that have not carried out an activation, with the reasons."""
    fact = f"{record.candidate} is the candidate" if record.candidate else f"{record.version} is current"
    expected = max(len(alive) + len(killed), replicas)
    if not alive and not killed:
        return (
            f"{fact}, but no replica reports: none is running, none may write to the store's folder, "
            "the replicas share a Redis that --redis-url does not name, or this user may not write to the store, and "
            "the clock of this host differs by more than ten seconds"
        )
    left = expected - len(alive) + len(behind)
    lines = [f"{fact}, but {left} of {expected} replicas have not opened it:"]
    for report in behind:
        serves = f"serves {report.version}" if report.version else "serves no version"
        late = f"it has not opened the new version yet (generation {report.generation})"
        reason = report.problem if report.refused == record.generation else late
        lines.append(f"  {report.replica} {serves}: {reason}")
    lines += [f"  {report.replica} stopped reporting: it was killed, or it hangs" for report in killed]
    if expected > len(alive) + len(killed):
        lines.append(f"  only {len(alive)} of {expected} replicas report")
    return "\n".join(lines)


class Reporter:
    """Writes the report of this replica at once when it changes, and every second.

    It has a thread of its own, so that the reports continue while a version opens.
    """

    def __init__(self, reports: Reports, versions: OpenVersions) -> None:
        self._reports, self._versions = reports, versions
        # The fields `generation`, `refused` and `problem` of the report. Threads replace the tuple as a whole.
        self._state: tuple[int | None, int | None, str | None] = (None, None, None)
        self._left = False
        self._thread = BackgroundThread("report", self._report, _REPORT_SECONDS, "report_unwritable")

    def start(self) -> None:
        self._thread.start()

    def carried_out(self, generation: int) -> None:
        """This process has opened the versions of an activation."""
        self._state = generation, None, None
        self._thread.wake()

    def refused(self, generation: int, problem: str) -> None:
        """This process cannot open a version of an activation."""
        if len(problem) > _MAX_REASON_CHARACTERS:
            problem = problem[:_MAX_REASON_CHARACTERS] + "..."
        self._state = self._state[0], generation, problem
        self._thread.wake()

    def leave(self) -> None:
        """Remove the report soon, because this process begins to stop."""
        self._left = True
        self._thread.wake()

    def stop(self, seconds: float | None = None) -> None:
        """Stop the thread, and remove the report; wait at most so many seconds."""
        if self._thread.stop(seconds):  # otherwise, a step waits for the place of the reports
            self._reports.remove()

    def _report(self) -> None:
        if self._left:
            self._reports.remove()
            return
        (generation, refused, problem), names = self._state, tuple(self._versions.names())
        self._reports.write(
            Report(
                replica=replica_name(),
                version=names[0] if names else None,
                open=names,
                generation=generation,
                refused=refused,
                problem=problem,
            )
        )


def replica_name() -> str:
    """The name of this process among the replicas of its store."""
    return _name_of(os.getpid())


@functools.cache
def _name_of(process: int) -> str:
    """Host name, process id and random digits: containers can have equal host names and process ids."""
    host = re.sub(r"[^0-9A-Za-z.-]", "-", socket.gethostname())[:128]
    return f"{host}-{process}-{secrets.token_hex(2)}"


def _parsed(name: str, content: bytes) -> Report | None:
    """The report of a replica; None if the content is not its report."""
    try:
        report = Report.model_validate_json(content)
    except ValidationError:
        return None
    is_own = report.replica == name and _REPLICA_NAME.fullmatch(name) is not None
    return report if is_own else None


def _redis_seconds(client: Any) -> float:
    seconds, microseconds = client.time()
    return float(seconds + microseconds / 1e6)
