"""`python -m loadtests.bench_log --location LOCATION`: rates of writes to a memory log, and the time to open one.

1, 8 and 32 threads write single instances to a new log below LOCATION, a folder or a URL such as `s3://bucket/bench`.
Then a log of single commits is opened. The memory only counts the entries: the benchmark measures the log alone.
`flush_ms` is the time of one flush of a file in a folder. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from loadtests.processes import cpu_model
from recollect.core.errors import StoreError
from recollect.core.tables.entries import LoggedEntry, PutInstance
from recollect.edits.commits import EncoderOfCommit, encode_commit, new_commit, number
from recollect.edits.log import MEMORY, MemoryLog, path_of
from recollect.edits.writer import MemoryWriter
from recollect.store.files import MAX_SMALL_BYTES
from recollect.store.object_folder import StoreFiles
from recollect.store.store import Store

_DIM = 384
_ENCODER = EncoderOfCommit("0" * 64, _DIM)
_VECTOR = np.full(_DIM, _DIM**-0.5, dtype=np.float32)


class _SlowFiles:
    """Files whose calls take longer, as those of a distant object store do."""

    can_list = True

    def __init__(self, files: StoreFiles, seconds: float) -> None:
        self.name, self._files, self._seconds = files.name, files, seconds

    def create(self, name: str, content: bytes) -> bool:
        time.sleep(self._seconds)
        return self._files.create(name, content)

    def read(self, name: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes | None:
        time.sleep(self._seconds)
        return self._files.read(name, max_bytes)

    def names(self, folder: str, after: str = "") -> list[str]:
        time.sleep(self._seconds)
        return self._files.names(folder, after)

    def delete(self, *names: str) -> None:
        self._files.delete(*names)


def writes_per_second(files: StoreFiles, threads: int, seconds: float) -> float:
    """Write single instances with several threads of one process."""
    writer = MemoryWriter(MemoryLog(files, _ENCODER), 0, _count)
    writer.catch_up()
    start = time.monotonic()

    def write(thread: int) -> None:
        count = 0
        while not count or time.monotonic() < start + seconds:
            entries = [_instance(f"{thread}/{count}")]
            writer.write(lambda _, entries=entries: entries)  # type: ignore[misc] # mypy does not infer the default
            count += 1

    with ThreadPoolExecutor(threads) as pool:
        for written in [pool.submit(write, thread) for thread in range(threads)]:
            written.result()
    return writer.memory / (time.monotonic() - start)


def opening_seconds(files: StoreFiles, slow: StoreFiles, commits: int) -> float:
    """Write a log of single commits, then open it."""

    def create(sequence: int) -> None:
        commit = new_commit(number([_instance(str(sequence))], sequence), [], _ENCODER)
        files.create(path_of(sequence), encode_commit(commit))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(create, range(1, commits + 1)))
    start = time.monotonic()
    assert len(MemoryLog(slow, _ENCODER).read()) == commits
    return time.monotonic() - start


def measure(location: str, seconds: float, commits: int, latency: float) -> dict[str, Any]:
    found: dict[str, Any] = {"latency_ms": 1_000 * latency, "load": os.getloadavg()[0], "cpu": cpu_model()}
    if "://" not in location:
        found["flush_ms"] = round(1_000 * _flush_seconds(location), 2)
    for threads in (1, 8, 32):
        with _new_log(location) as files:
            rate = writes_per_second(_slowed(files, latency), threads, seconds)
            found[f"writes_per_second_{threads}"] = round(rate, 1)
    with _new_log(location) as files:
        taken = opening_seconds(files, _slowed(files, latency), commits)
    return found | {"commits": commits, "opening_seconds": round(taken, 2)}


@contextlib.contextmanager
def _new_log(location: str) -> Iterator[StoreFiles]:
    """The files of a new store, which are deleted afterwards."""
    files = Store(f"{location}/{secrets.token_hex(8)}").files
    yield files
    files.delete(*(f"{MEMORY}/{name}" for name in files.names(MEMORY)))


def _slowed(files: StoreFiles, seconds: float) -> Any:
    """The files with the methods that a log needs."""
    return _SlowFiles(files, seconds)


def _count(memory: int, entries: Sequence[LoggedEntry], commit: str) -> int:
    return memory + len(entries)


def _instance(uid: str) -> PutInstance:
    return PutInstance(uid, "bed that hangs between two trees", ["sku-9"], _VECTOR)


def _flush_seconds(folder: str, times: int = 50) -> float:
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        start = time.monotonic()
        for _ in range(times):
            file.write(bytes(2_500))
            os.fsync(file.fileno())
    return (time.monotonic() - start) / times


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench_log", description=__doc__)
    parser.add_argument("--location", required=True, help="folder on the disk that is measured, or URL")
    parser.add_argument("--seconds", type=float, default=5, help="duration of the writes of each number of threads")
    parser.add_argument("--commits", type=int, default=10_000, help="commits of the log that is opened")
    parser.add_argument("--latency-ms", type=float, default=0, help="additional time of each call")
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(measure(given.location, given.seconds, given.commits, given.latency_ms / 1_000)))
    except (StoreError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
