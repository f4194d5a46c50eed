"""The batcher: computes requests, together if they arrive while all threads are busy.

A few threads compute answers, so that the event loop stays free. If a thread is idle, a request is computed alone and
at once. If all threads are busy, requests wait in a queue, and the next free thread takes its share of the waiting
requests as one batch: their number divided by the number of threads. If queries take less time together than apart, it
shares them only with threads that are free, too.

A cheap query that arrives while nothing else is to do is computed by the event loop itself, because waking a thread and
the event loop takes longer than its answer.

Equal requests are computed once: a request that equals one in the queue or in a running batch waits for its answer.
Requests whose client disconnected or whose deadline passed are dropped without being computed. A running batch stops
between two blocks if no request waits for its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from pydantic_core import to_json

from recollect.core.answers import Answer
from recollect.core.errors import OverloadError, QueryError
from recollect.core.options import AnswerOptions
from recollect.core.vectors import AnyQuery
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.open_versions import Lease

# Equal requests with more labels in their filters are computed separately, because comparing them takes long.
_MAX_COMPARED_LABELS = 1_000
# Maximum size of the answers to a request, in bytes of JSON. Only long explanations reach it.
MAX_ANSWER_BYTES = 16 << 20


class _AbandonedError(Exception):
    """Stops a batch for whose answers no request waits."""


@dataclass(frozen=True)
class Computed:
    """The answers to one request."""

    json: list[bytes]  # the answer to each query as a JSON object
    answers: Sequence[Answer | None]  # the same answers; None for an answer from the cache
    milliseconds: dict[str, float]  # of each stage
    sequence: int  # of the last change of the memory that answered


@dataclass(eq=False)
class _Job:
    """A computation in the queue or in a batch, and the futures of the equal requests that wait for its result.

    Its lease keeps its version open until its batch is done.
    """

    lease: Lease
    queries: Sequence[AnyQuery]
    options: AnswerOptions
    cost: int
    key: Hashable
    loop: asyncio.AbstractEventLoop
    deadline: float  # the earliest one of the requests, as a time of `time.monotonic`
    futures: list[asyncio.Future[Computed]] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)

    @property
    def abandoned(self) -> bool:
        """Whether no request waits for the result any more; no request can join from then on."""
        return all(future.done() for future in self.futures)

    @property
    def is_quick(self) -> bool:
        """Whether the event loop may compute it: one query without an explanation, which takes little time."""
        is_simple = len(self.queries) == 1 and not self.options.explain and not self.options.by_fields
        return is_simple and not self.options.rerank and self.cost <= self.lease.predictor.quick_cost

    def join(self) -> asyncio.Future[Computed]:
        self.futures.append(self.loop.create_future())
        return self.futures[-1]

    def finish(self, result: Computed | Exception) -> None:
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

    def begin_block(self) -> None:
        self.block_began = time.monotonic()
        if all(job.abandoned for job in self.jobs):
            raise _AbandonedError

    def finish(self, results: list[Computed | Exception]) -> None:
        """Set the results of the jobs, on the event loop."""
        for job, result in zip(self.jobs, results, strict=True):
            job.finish(result)


class Batcher:
    """The queue of requests, and the threads that compute the requests in the queue.

    Args:
        max_waiting: Maximum cost of the requests in the queue, where a normal query costs 1 (see `request_cost`); a
            request that would exceed it is refused.
        max_together: Maximum number of queries in one batch; a single larger request is computed alone.
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
        self._closed = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # notified for each job that a thread is to compute
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
            self._work.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def threads(self) -> int:
        return len(self._threads)

    @property
    def busy_threads(self) -> int:
        return len(self._running)

    @property
    def load(self) -> float:
        """The share of the threads that compute a batch, from 0 to 1."""
        return self.busy_threads / self.threads

    @property
    def hung(self) -> bool:
        """Whether a block of a batch takes longer than it may.

        The process must then be replaced, because a thread cannot end. The time of the whole batch does not count:
        equal requests can join the batch, so that it runs on after the deadline of the first request.
        """
        now = time.monotonic()
        return any(now - batch.block_began > self._hang_seconds for batch in [*self._running])

    def submit(
        self,
        lease: Lease,
        queries: Sequence[AnyQuery],
        options: AnswerOptions,
        cost: int,
        seconds: float = math.inf,
    ) -> asyncio.Future[Computed]:
        """Queue a request. A request whose future is cancelled is not computed, or its computation is stopped.

        The queue takes a second lease of the version until the batch is done.

        Args:
            seconds: Time until the deadline. A cross-encoder is left out if it would take longer.

        Raises:
            OverloadError: If too many queries wait.
        """
        # A request does not join a computation that may have begun before the last change of the memory.
        key: Hashable = (id(lease.predictor), lease.predictor.memory.sequence, options, tuple(queries))
        if options.filter_labels > _MAX_COMPARED_LABELS:
            key = object()
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + seconds
        with self._lock:
            job = self._joinable.get(key)
            if job is not None and not job.abandoned:
                self._metrics.coalesced.inc()
                job.deadline = min(job.deadline, deadline)
                return job.join()
            if self._queue and self._cost_waiting + cost > self._max_waiting:
                raise OverloadError(f"the queue is full: {self._queries_waiting:,} queries wait; retry shortly")
            self._joinable[key] = job = _Job(lease.share(), queries, options, cost, key, loop, deadline)
            self._queue.append(job)
            self._count_waiting(job, 1)
            if job.is_quick and not self._running:
                loop.call_soon(self._compute_here)  # after the requests that have arrived at the same time
            else:
                self._work.notify()
            return job.join()

    def _compute_here(self) -> None:
        """Compute a quick job on the event loop if there is no other work; otherwise let the threads compute."""
        with self._lock:
            if self._running or len(self._queue) != 1 or not self._queue[0].is_quick:
                self._work.notify(len(self._queue))
                return
            batch = self._take()
        batch.finish(self._compute_batch(batch))

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Wait for jobs, and compute a batch of them; return False if the batcher is closed.

        An idle thread holds no lease, so that old versions can be closed.
        """
        with self._lock:
            while not self._queue and not self._closed:
                self._work.wait()
            if not self._queue:
                return False
            batch = self._take()
        results = self._compute_batch(batch)
        if batch.jobs:
            # One call for all jobs, because waking the event loop costs more than the call itself.
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                batch.jobs[0].loop.call_soon_threadsafe(batch.finish, results)
        return True

    def _take(self) -> _Batch:
        """Take a share of the queue: jobs of one version, without cancelled jobs. The caller holds the lock."""
        predictor = self._queue[0].lease.predictor
        free = max(1, len(self._threads) - len(self._running))  # with this thread
        shares = free if predictor.is_faster_together else len(self._threads)
        room = min(self._max_together, math.ceil(self._queries_waiting / shares))
        batch = _Batch([])
        while self._queue:
            job = self._queue[0]
            # A small request does not wait for a large one that came after it. A request with a cross-encoder is
            # computed alone: it saves nothing in a batch, and the others would wait for it beyond their deadlines.
            is_alone = job.options.rerank or (batch.jobs and batch.jobs[0].options.rerank)
            if batch.jobs and (is_alone or len(job.queries) > room or job.lease.predictor is not predictor):
                break
            self._queue.popleft()
            self._count_waiting(job, -1)
            if job.abandoned:
                self._drop(job)
            else:
                batch.jobs.append(job)
                predictor = job.lease.predictor
                room -= len(job.queries)
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
        self._metrics.count_stages({"queue": 1e3 * (time.perf_counter() - job.submitted)})

    def _forget(self, job: _Job) -> None:
        """Let no further request join a job."""
        if self._joinable.get(job.key) is job:
            del self._joinable[job.key]

    def _compute_batch(self, batch: _Batch) -> list[Computed | Exception]:
        """Compute the jobs of a batch, end it, and return their results."""
        try:
            return self._compute(batch.jobs, batch.begin_block)
        finally:
            with self._lock:
                self._running.remove(batch)
                for job in batch.jobs:
                    self._forget(job)
            for job in batch.jobs:
                job.lease.release()

    def _compute(self, jobs: list[_Job], begin_block: Callable[[], None]) -> list[Computed | Exception]:
        """Compute jobs of one version together, and serialise their answers.

        If this fails, compute each job alone, so that one bad request does not fail the others.
        """
        if not jobs:
            return []
        started = time.perf_counter()
        self._metrics.batch_queries.observe(sum(len(job.queries) for job in jobs))
        try:
            predictions = jobs[0].lease.predictor.predict_together(
                [(job.queries, job.options) for job in jobs], begin_block, [job.deadline for job in jobs]
            )
            results: list[Computed | Exception] = []
            for job, answers in zip(jobs, predictions, strict=True):
                milliseconds = {"queue": 1e3 * (started - job.submitted), **answers.milliseconds}
                self._metrics.count_stages({"queue": milliseconds["queue"]})
                for answer in answers.answers:
                    if answer.reranked is not None:
                        self._metrics.reranked.labels(answer.left_out or "read").inc()
                try:
                    json = _serialise(answers.answers)
                except QueryError as error:
                    results.append(error)
                    continue
                results.append(Computed(json, answers.answers, milliseconds, answers.sequence))
            self._metrics.count_stages(predictions[0].milliseconds)
            return results
        except BaseException as error:  # a panic in a library that is written in Rust is not an Exception
            if len(jobs) > 1 and not isinstance(error, _AbandonedError):
                return [result for job in jobs for result in self._compute([job], begin_block)]
            return [error if isinstance(error, Exception) else RuntimeError(repr(error))] * len(jobs)


def _serialise(answers: Sequence[Answer]) -> list[bytes]:
    """The answers to a request as JSON objects; a `QueryError` if they have too many bytes."""
    json, size = list[bytes](), 0
    for answer in answers:
        json.append(to_json(answer.to_dict()))
        size += len(json[-1])
        if size > MAX_ANSWER_BYTES:
            raise QueryError(
                f"explain: expected an answer of at most {MAX_ANSWER_BYTES:,} bytes, found a larger one; set a smaller "
                "top_k, send fewer queries, or leave out explain or fields"
            )
    return json
