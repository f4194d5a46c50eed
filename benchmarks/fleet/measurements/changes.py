"""Measure the costs of a swap, of live writes and of a compaction."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fleet.constants import Changes, Step
from loadtests.client import Connection
from loadtests.processes import thread_times
from loadtests.replica import Replica, replica
from loadtests.swaps import add_changed_version, copied_versions, swap_to
from loadtests.workload import sample_texts
from service.bundle.integrity import describe_files
from service.store.store import Store
from service.versions.opening import Opener
from service.versions.throttle import Throttle

_KEY = "load-test-0123456789abcdef"
_IDLE_SECONDS, _FOLLOW_SECONDS = 3.0, 5.0
# A thread wakes up this often. If it is later than Python's switch interval allows, and a core is free, another thread
# kept the interpreter lock.
_WAKE_UP_SECONDS, _LATE_SECONDS = 0.0005, 2 * sys.getswitchinterval()


class _StepTimer(Throttle):
    """Records the steps of background work, and never pauses.

    Use it as a context manager. A second thread wakes up often. If it gets the interpreter lock late, a step kept it.
    """

    def __init__(self) -> None:
        super().__init__(load=lambda: 0.0, cancelled=threading.Event())
        self.steps: list[Step] = []
        self._ended, self._late = time.perf_counter(), list[tuple[float, float]]()
        self._stopped = threading.Event()
        self._second = threading.Thread(target=self._wake_up)

    def __enter__(self) -> _StepTimer:
        self._second.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._second.join()

    def pause(self) -> None:
        start = self._step_start
        super().pause()
        if self._step_start != start:  # otherwise, the step was short, and counts with the next one
            since, self._ended = self._ended, time.perf_counter()
            self._stopped.wait(2 * _WAKE_UP_SECONDS)  # until the second thread has recorded the end of the step
            locked = sum(max(0.0, min(end, self._ended) - max(due, since)) for due, end in self._late)
            cpu = self._step_start - start
            self.steps.append(Step(cpu_ms=1e3 * cpu, locked_ms=1e3 * min(cpu, locked)))

    def _wake_up(self) -> None:
        last = time.perf_counter()
        while not self._stopped.wait(_WAKE_UP_SECONDS):
            now = time.perf_counter()
            if now - last > _LATE_SECONDS:
                self._late.append((last + _WAKE_UP_SECONDS, now))
            last = now


def measure_changes(store: Path, writes: int) -> Changes:
    """Measure changes of a copy of a store.

    Args:
        store: A store whose current version has exact indexes (`recollect build --index flat`).
        writes: Number of live instances to write, one a request.

    Raises:
        ServiceError, ReplicaError, TimeoutError: If the store cannot be served.
        subprocess.CalledProcessError: If the compaction fails.
    """
    with copied_versions(store, 2) as (copied, versions):
        manifest = copied.manifest(versions[0])
        gigabytes = manifest.size_bytes / 1e9
        start = time.process_time()
        describe_files(copied.path(versions[0]))
        checksums = time.process_time() - start
        changed = add_changed_version(copied, versions[0], 1)
        with replica(copied.root, cache_mb=0, threads=1, poll_seconds=0.1) as server:
            shared_cpu, _ = _swap(copied, versions[1], server)
            changed_cpu, changed_seconds = _swap(copied, changed, server)
        steps = _swap_steps(copied, versions[0], changed)
        log_bytes, write_cpu, follow_cpu = _write(copied, writes)
        before = _child_seconds()
        command = [sys.executable, "-m", "recollect", "compact", str(copied.root), "--index", "flat", "--threads", "1"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        compacted = _child_seconds() - before
    return Changes(
        bundle_mb=1e3 * gigabytes,
        swap_seconds=changed_seconds,
        swap_cpu_seconds=changed_cpu,
        swap_steps=steps,
        shared_swap_cpu_seconds=shared_cpu,
        checksum_gb_per_second=gigabytes / checksums,
        write_cpu_ms=1e3 * write_cpu / writes,
        follow_cpu_ms=1e3 * follow_cpu / writes,
        log_bytes=log_bytes / writes,
        compact_cpu_ms=1e3 * compacted / (manifest.counts.instances + manifest.counts.labels + writes),
    )


def _swap(store: Store, version: str, server: Replica) -> tuple[float, float]:
    """Swap to a version; return the CPU time of the server, and the duration."""
    cpu, start = _cpu(server), time.perf_counter()
    swap_to(store, version, server.address)
    duration = time.perf_counter() - start
    time.sleep(1)  # the server closes the old version
    return _cpu(server) - cpu, duration


def _swap_steps(store: Store, version: str, changed: str) -> list[Step]:
    """Open a version beside another one; return the steps."""
    opener = Opener(store, threads=1)
    with contextlib.closing(opener.open(version)) as predictor, _StepTimer() as timer:
        opener.open(changed, timer, [predictor]).close()
    return timer.steps


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
        size, spent = _other_bytes(store), [_cpu(each) for each in (writer, follower)]
        start = time.perf_counter()
        for number in range(1, writes + 1):
            write(number)
        time.sleep(_FOLLOW_SECONDS)
        duration = time.perf_counter() - start
        after = [_cpu(each) for each in (writer, follower)]
        time.sleep(_IDLE_SECONDS)
        idle = [(_cpu(each) - cpu) / _IDLE_SECONDS for each, cpu in zip((writer, follower), after, strict=True)]
        write_cpu, follow_cpu = (
            last - first - rate * duration for first, last, rate in zip(spent, after, idle, strict=True)
        )
        return _other_bytes(store) - size, write_cpu, follow_cpu


def _cpu(server: Replica) -> float:
    return sum(thread_times(server.process).values())


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
