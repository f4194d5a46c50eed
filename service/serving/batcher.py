"""The batcher: requests that arrive while all threads are busy are encoded together.

A few threads compute answers, so that the event loop stays free. If a thread is idle, a request is computed alone and
at once. If all threads are busy, requests wait in a queue, and the next free thread takes its share of the waiting
requests as one batch: their number divided by the number of threads. Requests whose client disconnected or whose
deadline passed are dropped without being computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from service.errors import OverloadError
from service.options import AnswerOptions
from service.predictor.predictor import Answers
from service.telemetry.metrics import Metrics
from service.versions.leases import Lease

Result = TypeVar("Result")


@dataclass(eq=False)
class _Job(Generic[Result]):
    """A request in the queue. Its lease keeps its version open until its batch is done."""

    lease: Lease
    queries: Sequence[str]
    options: AnswerOptions
    convert: Callable[[Answers], Result]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Result]
    submitted: float = field(default_factory=time.perf_counter)

    def result(self, answers: Answers, started: float) -> Result | Exception:
        """Add the time in the queue to the times of the stages, and convert the answers.

        If this fails, return the error.
        """
        queued = {"queue": 1e3 * (started - self.submitted)}
        try:
            return self.convert(dataclasses.replace(answers, milliseconds=queued | answers.milliseconds))
        except Exception as error:
            return error

    def finish(self, result: Result | Exception) -> None:
        """Set the result of the future, on the event loop; a cancelled future is left unchanged."""
        if self.future.done():
            return
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class Batcher:
    """The queue of requests, and the threads that compute the requests in the queue.

    Args:
        threads: Number of threads; each computes one batch at a time.
        max_waiting: Maximum number of queries in the queue; a request that would exceed it is refused.
        max_together: Maximum number of queries in one batch; a single larger request is computed alone.
        metrics: Records the length of the queue and the sizes of batches.
    """

    def __init__(self, threads: int, max_waiting: int, max_together: int, metrics: Metrics) -> None:
        self._max_waiting, self._max_together, self._metrics = max_waiting, max_together, metrics
        self._queue: deque[_Job[Any]] = deque()
        self._queries_waiting = 0
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[threading.Condition] = []
        self._threads = [
            threading.Thread(target=self._run, name=f"predict-{number}", daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Compute the requests in the queue, then stop the threads."""
        with self._lock:
            self._closed = True
            for idle in self._idle:
                idle.notify()
        for thread in self._threads:
            thread.join()

    @property
    def load(self) -> float:
        """The share of the threads that compute a batch, from 0 to 1."""
        return 1 - len(self._idle) / len(self._threads)

    @property
    def queries_waiting(self) -> int:
        return self._queries_waiting

    def submit(
        self, lease: Lease, queries: Sequence[str], options: AnswerOptions, convert: Callable[[Answers], Result]
    ) -> asyncio.Future[Result]:
        """Queue a request. If the future is cancelled before a thread takes the request, the request is not computed.

        Args:
            lease: Lease of the version that answers. The queue takes a second lease until the batch is done.
            queries: One query, or a batch.
            options: Options of the answers.
            convert: Converts the answers to the result, on the thread that computed the answers.

        Raises:
            OverloadError: If too many queries wait.
        """
        loop = asyncio.get_running_loop()
        job: _Job[Result] = _Job(lease, queries, options, convert, loop, loop.create_future())
        with self._lock:
            if self._queue and self._queries_waiting + len(queries) > self._max_waiting:
                raise OverloadError(f"the queue is full: {self._queries_waiting:,} queries wait; retry shortly")
            job.lease = lease.share()
            self._queue.append(job)
            self._queries_waiting += len(queries)
            self._metrics.queue.set(self._queries_waiting)
            if self._idle:
                self._idle.pop().notify()  # the thread that became idle last: its CPU caches are warm
        return job.future

    def _run(self) -> None:
        wake_up = threading.Condition(self._lock)
        while self._run_next(wake_up):
            pass

    def _run_next(self, wake_up: threading.Condition) -> bool:
        """Compute one batch of requests from the queue; return False if the batcher is closed.

        An idle thread holds no lease, so that old versions can be closed.
        """
        jobs = self._take(wake_up)
        if jobs is None:
            return False
        for batch in _by_version(jobs):
            try:
                self._compute(batch)
            finally:
                for job in batch:
                    job.lease.release()
        return True

    def _take(self, wake_up: threading.Condition) -> list[_Job[Any]] | None:
        """Wait for requests in the queue and take a fair share of them, without cancelled requests.

        Return None when the batcher is closed and the queue is empty.
        """
        with self._lock:
            while not self._queue and not self._closed:
                self._idle.append(wake_up)
                wake_up.wait()
                if wake_up in self._idle:  # woken by `close` or without a cause
                    self._idle.remove(wake_up)
            if not self._queue:
                return None
            room = min(self._max_together, math.ceil(self._queries_waiting / len(self._threads)))
            jobs: list[_Job[Any]] = []
            while self._queue:
                queries = len(self._queue[0].queries)
                if jobs and queries > room:
                    break  # a small request does not wait for a large one that came after it
                job = self._queue.popleft()
                self._queries_waiting -= queries
                if job.future.done():
                    job.lease.release()
                else:
                    jobs.append(job)
                    room -= queries
            self._metrics.queue.set(self._queries_waiting)
            return jobs

    def _compute(self, jobs: list[_Job[Any]]) -> None:
        """Compute the requests of one version together.

        If this fails, compute each request alone, so that one bad request does not fail the others.
        """
        started = time.perf_counter()
        self._metrics.batch_queries.observe(sum(len(job.queries) for job in jobs))
        try:
            answers = jobs[0].lease.predictor.predict_together([(job.queries, job.options) for job in jobs])
        except BaseException as error:  # a panic in a library that is written in Rust is not an Exception
            if len(jobs) == 1:
                _finish(jobs, [error if isinstance(error, Exception) else RuntimeError(repr(error))])
            else:
                for job in jobs:
                    self._compute([job])
            return
        _finish(jobs, [job.result(answered, started) for job, answered in zip(jobs, answers, strict=True)])


def _by_version(jobs: list[_Job[Any]]) -> list[list[_Job[Any]]]:
    """Group requests by version: directly after a swap, the queue may contain requests for two versions."""
    groups: dict[int, list[_Job[Any]]] = {}
    for job in jobs:
        groups.setdefault(id(job.lease.predictor), []).append(job)
    return list(groups.values())


def _finish(jobs: list[_Job[Any]], results: list[Any]) -> None:
    """Set all results in one call on the event loop, because waking the event loop costs more than the call itself."""

    def finish_all() -> None:
        for job, result in zip(jobs, results, strict=True):
            job.finish(result)

    with contextlib.suppress(RuntimeError):  # the event loop has ended
        jobs[0].loop.call_soon_threadsafe(finish_all)
