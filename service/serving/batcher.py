"""The batcher: requests that arrive while all threads are busy are encoded together.

A few threads compute answers, so that the event loop stays free. If a thread is idle, a request is computed alone and
at once. If all threads are busy, requests wait in a queue, and the next free thread takes its share of the waiting
requests as one batch: their number divided by the number of threads. If queries take less time together than apart, it
takes all waiting requests.

Equal requests are computed once: a request that equals one in the queue or in a running batch waits for its answer.
Requests whose client disconnected or whose deadline passed are dropped without being computed. A running batch stops
between two blocks if no request waits for its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from recollect.service.errors import DrainingError, OverloadError
from recollect.service.options import AnswerOptions, request_cost
from recollect.service.predictor.answers import Answers
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.open_versions import Lease

Result = TypeVar("Result")

# Equal requests with more labels in their filters are computed separately, because comparing them takes long.
_MAX_COMPARED_LABELS = 1_000


class _AbandonedError(Exception):
    """Stops a batch for whose answers no request waits."""


@dataclass(eq=False)
class _Job:
    """A computation in the queue or in a batch, and the futures of the equal requests that wait for its result.

    Its lease keeps its version open until its batch is done.
    """

    lease: Lease
    queries: Sequence[str]
    options: AnswerOptions
    convert: Callable[[Answers], Any]
    loop: asyncio.AbstractEventLoop
    cost: int
    key: Hashable
    futures: list[asyncio.Future[Any]] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)

    @property
    def abandoned(self) -> bool:
        """Whether no request waits for the result any more; no request can join from then on."""
        return all(future.done() for future in self.futures)

    def join(self) -> asyncio.Future[Any]:
        self.futures.append(self.loop.create_future())
        return self.futures[-1]

    def result(self, answers: Answers, started: float) -> Any:
        """Add the time in the queue to the times of the stages, and convert the answers.

        If this fails, return the error.
        """
        queued = {"queue": 1e3 * (started - self.submitted)}
        try:
            return self.convert(dataclasses.replace(answers, milliseconds=queued | answers.milliseconds))
        except BaseException as error:  # a panic in a library that is written in Rust is not an Exception
            return _as_exception(error)

    def finish(self, result: Any) -> None:
        """Set the result of the futures, on the event loop; cancelled futures are left unchanged."""
        for future in self.futures:
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


@dataclass(eq=False)
class _Batch:
    """The jobs that a thread computes, and the time at which it began the present block of the computation."""

    jobs: list[_Job]
    block_began: float = field(default_factory=time.monotonic)


class Batcher:
    """The queue of requests, and the threads that compute the requests in the queue.

    Args:
        threads: Number of threads; each computes one batch at a time.
        max_waiting: Maximum cost of the requests in the queue, where a normal query costs 1 (see `request_cost`); a
            request that would exceed it is refused.
        max_together: Maximum number of queries in one batch; a single larger request is computed alone.
        metrics: Records the length of the queue and the sizes of batches.
        hang_seconds: A batch hangs if one block of its computation takes longer than this.
    """

    def __init__(
        self, threads: int, max_waiting: int, max_together: int, metrics: Metrics, hang_seconds: float
    ) -> None:
        self._max_waiting, self._max_together, self._metrics = max_waiting, max_together, metrics
        self._hang_seconds = hang_seconds
        self._queue: deque[_Job] = deque()
        self._queries_waiting = self._cost_waiting = 0
        self._joinable: dict[Hashable, _Job] = {}  # the jobs in the queue and in running batches
        self._running: list[_Batch] = []
        self._closed = self._aborted = False
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

    def abort(self) -> int:
        """Fail all requests with a DrainingError, now and from now on, and return their number.

        Running batches stop before their next block. Call this on the event loop.
        """
        with self._lock:
            self._aborted = True
            jobs = [*self._queue, *(job for batch in self._running for job in batch.jobs)]
        waiting = sum(not future.done() for job in jobs for future in job.futures)
        for job in jobs:
            job.finish(DrainingError())
        return waiting

    @property
    def threads(self) -> int:
        return len(self._threads)

    @property
    def busy_threads(self) -> int:
        """Number of threads that compute a batch."""
        return len(self._running)

    @property
    def load(self) -> float:
        """The share of the threads that compute a batch, from 0 to 1."""
        return self.busy_threads / self.threads

    @property
    def queries_waiting(self) -> int:
        return self._queries_waiting

    @property
    def hung(self) -> bool:
        """Whether a block of a batch takes longer than it may.

        The process must then be replaced, because a thread cannot end. The time of the whole batch does not count:
        equal requests can join the batch, so that it runs on after the deadline of the first request.
        """
        now = time.monotonic()
        return any(now - batch.block_began > self._hang_seconds for batch in [*self._running])

    def submit(
        self, lease: Lease, queries: Sequence[str], options: AnswerOptions, convert: Callable[[Answers], Result]
    ) -> asyncio.Future[Result]:
        """Queue a request. A request whose future is cancelled is not computed, or its computation is stopped.

        Args:
            lease: Lease of the version that answers. The queue takes a second lease until the batch is done.
            queries: One query, or a batch.
            options: Options of the answers.
            convert: Converts the answers to the result, on the thread that computed the answers.

        Raises:
            OverloadError: If too many queries wait.
            DrainingError: After `abort`.
        """
        loop, cost = asyncio.get_running_loop(), request_cost(queries, options)
        # A request does not join a computation that may have begun before the last change of the memory.
        memory = lease.predictor.memory
        key: Hashable = (id(lease.predictor), memory.sequence, convert, options, tuple(queries))
        if options.filter_labels > _MAX_COMPARED_LABELS:
            key = object()
        with self._lock:
            if self._aborted:
                raise DrainingError()
            job = self._joinable.get(key)
            if job is not None and not job.abandoned:
                self._metrics.coalesced.inc()
                return job.join()
            if self._queue and self._cost_waiting + cost > self._max_waiting:
                raise OverloadError(f"the queue is full: {self._queries_waiting:,} queries wait; retry shortly")
            job = _Job(lease.share(), queries, options, convert, loop, cost, key)
            future = job.join()
            self._joinable[key] = job
            self._queue.append(job)
            self._count_waiting(job, 1)
            if self._idle:
                self._idle.pop().notify()  # the thread that became idle last: its CPU caches are warm
        return future

    def _run(self) -> None:
        wake_up = threading.Condition(self._lock)
        while self._run_next(wake_up):
            pass

    def _run_next(self, wake_up: threading.Condition) -> bool:
        """Compute one batch of requests from the queue; return False if the batcher is closed.

        An idle thread holds no lease, so that old versions can be closed.
        """
        batch = self._take(wake_up)
        if batch is None:
            return False
        try:
            for jobs in _by_version(batch.jobs):
                self._compute(batch, jobs)
        finally:
            with self._lock:
                self._running.remove(batch)
            for job in batch.jobs:
                job.lease.release()
        return True

    def _take(self, wake_up: threading.Condition) -> _Batch | None:
        """Wait for requests in the queue and take a share of them, without cancelled requests.

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
            shares = 1 if self._queue[0].lease.predictor.is_faster_together else len(self._threads)
            room = min(self._max_together, math.ceil(self._queries_waiting / shares))
            batch = _Batch([])
            while self._queue:
                queries = len(self._queue[0].queries)
                if batch.jobs and queries > room:
                    break  # a small request does not wait for a large one that came after it
                job = self._queue.popleft()
                self._count_waiting(job, -1)
                if job.abandoned:
                    self._drop(job)
                else:
                    batch.jobs.append(job)
                    room -= queries
            self._running.append(batch)
            return batch

    def _count_waiting(self, job: _Job, sign: int) -> None:
        self._queries_waiting += sign * len(job.queries)
        self._cost_waiting += sign * job.cost
        self._metrics.queue.set(self._queries_waiting)

    def _drop(self, job: _Job) -> None:
        """Forget a job whose requests were cancelled in the queue.

        Its time in the queue counts, so that the metric shows an overload in which no request is answered.
        """
        self._forget(job)
        job.lease.release()
        self._metrics.stage_seconds.labels("queue").observe(time.perf_counter() - job.submitted)

    def _forget(self, job: _Job) -> None:
        """Let no further request join a job."""
        if self._joinable.get(job.key) is job:
            del self._joinable[job.key]

    def _compute(self, batch: _Batch, jobs: list[_Job]) -> None:
        """Compute the requests of one version together.

        If this fails, compute each request alone, so that one bad request does not fail the others.
        """

        def begin_block() -> None:
            batch.block_began = time.monotonic()
            if all(job.abandoned for job in jobs):
                raise _AbandonedError

        started = time.perf_counter()
        self._metrics.batch_queries.observe(sum(len(job.queries) for job in jobs))
        try:
            requests = [(job.queries, job.options) for job in jobs]
            answers = jobs[0].lease.predictor.predict_together(requests, begin_block)
            results = [job.result(answered, started) for job, answered in zip(jobs, answers, strict=True)]
        except BaseException as error:  # a panic in a library that is written in Rust is not an Exception
            if len(jobs) > 1 and not isinstance(error, _AbandonedError):
                for job in jobs:
                    self._compute(batch, [job])
                return
            results = [_as_exception(error)] * len(jobs)
        with self._lock:
            for job in jobs:
                self._forget(job)
        _finish(jobs, results)


def _by_version(jobs: list[_Job]) -> list[list[_Job]]:
    """Group requests by version: directly after a swap, the queue may contain requests for two versions."""
    groups: dict[int, list[_Job]] = {}
    for job in jobs:
        groups.setdefault(id(job.lease.predictor), []).append(job)
    return list(groups.values())


def _finish(jobs: list[_Job], results: list[Any]) -> None:
    """Set all results in one call on the event loop, because waking the event loop costs more than the call itself."""

    def finish_all() -> None:
        for job, result in zip(jobs, results, strict=True):
            job.finish(result)

    with contextlib.suppress(RuntimeError):  # the event loop has ended
        jobs[0].loop.call_soon_threadsafe(finish_all)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(repr(error))
