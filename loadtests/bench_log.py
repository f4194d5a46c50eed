"""`python -m loadtests.bench_log --folder FOLDER`: rates of writes to a memory log, and the time to open one.

1, 8 and 32 threads write single instances to a log in a new folder. Then a log of single commits is opened. The
memory only counts the entries: the benchmark measures the log alone. `flush_ms` is the time of one flush of a file. The
last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.processes import cpu_model
from recollect.service.memory.entries import LoggedEntry, PutInstance
from recollect.service.memory_log.commits import EncoderOfCommit, encode_commit, new_commit, number
from recollect.service.memory_log.log import MEMORY, MemoryLog, commit_name
from recollect.service.memory_log.writer import MemoryWriter
from recollect.service.store.files import MAX_SMALL_BYTES, FolderFiles

_DIM = 384
_ENCODER = EncoderOfCommit("0" * 64, _DIM)
_VECTOR = np.full(_DIM, _DIM**-0.5, dtype=np.float32)


class _SlowFiles(FolderFiles):
    """Files whose calls take longer, as those of an object store do."""

    def __init__(self, root: Path, seconds: float) -> None:
        super().__init__(root)
        self._seconds = seconds

    def create(self, name: str, content: bytes) -> bool:
        time.sleep(self._seconds)
        return super().create(name, content)

    def read(self, name: str, max_bytes: int = MAX_SMALL_BYTES) -> bytes | None:
        time.sleep(self._seconds)
        return super().read(name, max_bytes)

    def names(self, folder: str, after: str = "") -> list[str]:
        time.sleep(self._seconds)
        return super().names(folder, after)


def writes_per_second(files: FolderFiles, threads: int, seconds: float) -> float:
    """Write single instances with several threads of one process."""
    writer = MemoryWriter(MemoryLog(files, _ENCODER), 0, _count)
    writer.catch_up()
    start = time.monotonic()

    def write(thread: int) -> None:
        count = 0
        while time.monotonic() < start + seconds:
            entries = [_instance(f"{thread}/{count}")]
            writer.write(lambda _, entries=entries: entries)  # type: ignore[misc] # mypy does not infer the default
            count += 1

    workers = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return writer.memory / (time.monotonic() - start)


def opening_seconds(root: Path, files: FolderFiles, commits: int) -> float:
    """Open a log of single commits, which are not flushed to disk."""
    (root / MEMORY).mkdir()
    for sequence in range(1, commits + 1):
        commit = new_commit(number([_instance(str(sequence))], sequence), [], _ENCODER)
        (root / MEMORY / commit_name(sequence)).write_bytes(encode_commit(commit))
    start = time.monotonic()
    assert len(MemoryLog(files, _ENCODER).read()) == commits
    return time.monotonic() - start


def measure(folder: Path, seconds: float, commits: int, latency: float) -> dict[str, Any]:
    found: dict[str, Any] = {"latency_ms": 1_000 * latency, "load": os.getloadavg()[0], "cpu": cpu_model()}
    for threads in (1, 8, 32):
        with tempfile.TemporaryDirectory(dir=folder) as root:
            rate = writes_per_second(_SlowFiles(Path(root), latency), threads, seconds)
            found[f"writes_per_second_{threads}"] = round(rate, 1)
    with tempfile.TemporaryDirectory(dir=folder) as root:
        found["flush_ms"] = round(1_000 * _flush_seconds(Path(root) / "file"), 2)
        taken = opening_seconds(Path(root), _SlowFiles(Path(root), latency), commits)
        found |= {"commits": commits, "opening_seconds": round(taken, 2)}
    return found


def _count(memory: int, entries: Sequence[LoggedEntry], commit: str) -> int:
    return memory + len(entries)


def _instance(uid: str) -> PutInstance:
    return PutInstance(uid, "bed that hangs between two trees", ["sku-9"], _VECTOR)


def _flush_seconds(path: Path, times: int = 50) -> float:
    with path.open("wb", buffering=0) as file:
        start = time.monotonic()
        for _ in range(times):
            file.write(bytes(2_500))
            os.fsync(file.fileno())
    return (time.monotonic() - start) / times


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench_log", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder on the disk that is measured")
    parser.add_argument("--seconds", type=float, default=5, help="duration of the writes of each number of threads")
    parser.add_argument("--commits", type=int, default=10_000, help="commits of the log that is opened")
    parser.add_argument("--latency-ms", type=float, default=0, help="additional time of each call")
    given = parser.parse_args(arguments)
    print(json.dumps(measure(given.folder, given.seconds, given.commits, given.latency_ms / 1_000)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
