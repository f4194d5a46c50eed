"""Measure the costs of live writes and of a compaction."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fleet.constants import Changes
from loadtests.client import Connection
from loadtests.processes import thread_seconds
from loadtests.replica import replica
from loadtests.swaps import copied_versions
from loadtests.workload import sample_texts
from recollect.service.store.store import Store

_KEY = "load-test-0123456789abcdef"
_IDLE_SECONDS, _FOLLOW_SECONDS = 3.0, 5.0


def measure_changes(store: Path, writes: int) -> Changes:
    """Measure changes of a copy of a store.

    Args:
        store: A store whose current version has exact indexes (`recollect build --index flat`).
        writes: Number of live instances to write, one a request.

    Raises:
        ServiceError, ReplicaError, TimeoutError: If the store cannot be served.
        subprocess.CalledProcessError: If the compaction fails.
    """
    with copied_versions(store, 1) as (copied, (version,)):
        counts = copied.manifest(version).counts
        log_bytes, write_cpu, follow_cpu = _write(copied, writes)
        before = _child_seconds()
        command = [sys.executable, "-m", "recollect", "compact", str(copied.root), "--index", "flat", "--threads", "1"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        compacted = _child_seconds() - before
    return Changes(
        write_cpu_ms=1e3 * write_cpu / writes,
        follow_cpu_ms=1e3 * follow_cpu / writes,
        log_bytes=log_bytes / writes,
        compact_cpu_ms=1e3 * compacted / (counts.instances + counts.labels + writes),
    )


def _write(store: Store, writes: int) -> tuple[float, float, float]:
    """Write live instances; return the growth of the log in bytes, and the CPU time of the writer and of a follower."""
    bundle = store.open(store.require_current())
    texts, label = sample_texts(bundle.instances.texts, writes), bundle.labels.uids[0]
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".keys"))
        keys.write(f"writer {_KEY} write\n")
        keys.flush()
        flags = ["--writable", "--api-keys", keys.name]
        writer, follower = (stack.enter_context(replica(store.root, flags, cache_mb=0, threads=1)) for _ in range(2))
        connection = stack.enter_context(contextlib.closing(Connection(writer.address, api_key=_KEY)))

        def write(number: int) -> None:
            row = {"uid": f"live-{number}", "text": texts[number % len(texts)], "labels": [label]}
            reply = connection.post("/memory/instances", json.dumps({"instances": [row]}).encode())
            if reply.status != 200:
                raise ValueError(f"{reply.status}: {reply.body[:200]!r}")

        write(0)  # the first write builds tables
        time.sleep(_FOLLOW_SECONDS)
        size, spent = _other_bytes(store), [thread_seconds(each.process) for each in (writer, follower)]
        start = time.perf_counter()
        for number in range(1, writes + 1):
            write(number)
        time.sleep(_FOLLOW_SECONDS)
        duration = time.perf_counter() - start
        after = [thread_seconds(each.process) for each in (writer, follower)]
        time.sleep(_IDLE_SECONDS)
        idle = [
            (thread_seconds(each.process) - cpu) / _IDLE_SECONDS
            for each, cpu in zip((writer, follower), after, strict=True)
        ]
        write_cpu, follow_cpu = (
            last - first - rate * duration for first, last, rate in zip(spent, after, idle, strict=True)
        )
        return _other_bytes(store) - size, write_cpu, follow_cpu


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _other_bytes(store: Store) -> int:
    """Size of the files of a store outside its bundles."""
    return sum(size for path, size in _sizes(store.root) if store.bundles not in path.parents)


def _sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.is_file():
                yield path, path.stat().st_size
