"""Sample the work of the computing threads of replicas during a load."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from benchmarks.fleet.intervals import Interval
from benchmarks.fleet.measurements.service_load import metric_samples, metrics_of
from loadtests.client import LostRequestError
from loadtests.processes import thread_times
from loadtests.replica import Replica


@dataclass(frozen=True)
class _Sample:
    """The work of a replica until a moment.

    Attributes:
        threads: CPU seconds of each thread so far.
        metrics: The text of `/metrics`. It is parsed after the load, because that takes milliseconds.
    """

    threads: dict[int, float]
    metrics: str

    @classmethod
    def of(cls, replica: Replica) -> _Sample:
        """Take a sample now.

        Raises:
            OSError, LostRequestError: If the replica does not answer.
        """
        return cls(thread_times(replica.process), metrics_of(replica))

    @cached_property
    def batches(self) -> int:
        return self._total("count")

    @cached_property
    def queries(self) -> int:
        return self._total("sum")

    def _total(self, name: str) -> int:
        samples = metric_samples(self.metrics)
        return int(sum(sample.value for sample in samples if sample.name == f"recollect_batch_queries_{name}"))


class Sampler:
    """Samples the work of replicas while its `with` block runs.

    Args:
        replicas: The replicas. Call `sample` directly before one of them ends.
        step_seconds: Time from a sample to the next one.

    Raises:
        OSError, LostRequestError: If a replica does not answer before the block.
    """

    def __init__(self, replicas: Sequence[Replica], step_seconds: float = 2.0) -> None:
        self._replicas, self._step_seconds = replicas, step_seconds
        self._last = [_Sample.of(replica) for replica in replicas]
        self._start = time.perf_counter()
        self._moments = [(0.0, list(self._last))]
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Sampler:
        self._samples = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown()
        self._samples.result()  # raises its error

    def sample(self) -> None:
        """Take a sample of each replica; if it does not answer, its last sample stays."""
        with self._lock:
            for place, replica in enumerate(self._replicas):
                with contextlib.suppress(OSError, LostRequestError):
                    self._last[place] = _Sample.of(replica)

    def intervals(self) -> list[Interval]:
        """The work between the samples, after the block."""
        first = self._moments[0][1]
        computing = [_busiest(before, after) for before, after in zip(first, self._last, strict=True)]
        sums = [
            Interval(
                end=seconds,
                compute_seconds=sum(each.threads[thread] for each, thread in zip(samples, computing, strict=True)),
                queries=sum(each.queries for each in samples),
                batches=sum(each.batches for each in samples),
            )
            for seconds, samples in self._moments
        ]
        return [after.since(before) for before, after in zip(sums, sums[1:], strict=False)]

    def _run(self) -> None:
        """Sample after each step, and at the end."""
        ended = False
        while not ended:
            ended = self._ended.wait(max(0.0, self._moments[-1][0] + self._step_seconds - self._elapsed()))
            self.sample()
            self._moments.append((self._elapsed(), list(self._last)))

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start


def _busiest(before: _Sample, after: _Sample) -> int:
    """The thread that computes: the one with the most CPU time between two samples."""
    return max(before.threads, key=lambda thread: after.threads.get(thread, 0.0) - before.threads[thread])
