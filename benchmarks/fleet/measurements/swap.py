"""Measure the costs of a swap to another version."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.fleet.constants import Step, Swap
from benchmarks.fleet.measurements.reference import Reference
from loadtests.processes import thread_seconds
from loadtests.replica import Replica, replica
from loadtests.swaps import add_changed_version, copied_versions, swap_to
from recollect.service.bundle.integrity import describe_files
from recollect.service.store.store import Store
from recollect.service.versions.opening import Opener
from recollect.service.versions.throttle import Throttle

# After a swap, the server closes the old version within this time.
_CLOSING_SECONDS = 1.0
# Before a swap, the CPU time of the idle server is measured for this time.
_IDLE_SECONDS = 2.0
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


def measure_swap(store: Path, repetitions: int) -> Swap:
    """Measure swaps to copies of the current version of a store.

    Args:
        store: The store.
        repetitions: Number of swaps. Each copy has other files.

    Raises:
        ServiceError, ReplicaError, TimeoutError: If the store cannot be served.
    """
    with Reference(store) as reference, copied_versions(store, 2) as (copied, versions):
        reference_ms = [reference.time_ms()]
        gigabytes = copied.manifest(versions[0]).size_bytes / 1e9
        start = time.process_time()
        describe_files(copied.path(versions[0]))
        checksums = time.process_time() - start
        changed = [add_changed_version(copied, versions[0], 1 + number) for number in range(repetitions)]
        with replica(copied.root, cache_mb=0, threads=1, poll_seconds=0.1) as server:
            shared_cpu, _ = _swap(copied, versions[1], server)
            swaps = [_swap(copied, version, server) for version in changed]
        steps = _steps(copied, versions[0], changed[0])
        reference_ms.append(reference.time_ms())
    return Swap(
        reference_ms=sum(reference_ms) / 2,
        bundle_mb=1e3 * gigabytes,
        seconds=sum(seconds for _, seconds in swaps) / repetitions,
        cpu_seconds=sum(cpu for cpu, _ in swaps) / repetitions,
        steps=steps,
        shared_cpu_seconds=shared_cpu,
        checksum_gb_per_second=gigabytes / checksums,
    )


def _swap(store: Store, version: str, server: Replica) -> tuple[float, float]:
    """Swap to a version; return the CPU time that the server needs for the swap, and the duration of the swap."""
    idle = _seconds_used(server, lambda: time.sleep(_IDLE_SECONDS)) / _IDLE_SECONDS
    start = time.perf_counter()
    used = _seconds_used(server, lambda: swap_to(store, version, server.address))
    duration = time.perf_counter() - start
    used += _seconds_used(server, lambda: time.sleep(_CLOSING_SECONDS))
    return used - idle * (duration + _CLOSING_SECONDS), duration


def _seconds_used(server: Replica, run: Callable[[], None]) -> float:
    """CPU time of the server while `run` runs."""
    before = thread_seconds(server.process)
    run()
    return thread_seconds(server.process) - before


def _steps(store: Store, version: str, changed: str) -> list[Step]:
    """Open a version while another one is open; return the steps of the opening."""
    opener = Opener(store, threads=1)
    with contextlib.closing(opener.open(version)) as predictor, _StepTimer() as timer:
        opener.open(changed, timer, [predictor]).close()
    return timer.steps
