"""The batcher: requests that arrive while the encoder works are encoded together.

A few threads work off the event loop, each on its fair share of what waits. No request waits for company: one that
finds a thread idle is answered at once, and batches form by themselves where there is more to do than threads to do
it. What nobody waits for any more, because its client has gone or its time is up, is dropped unseen.
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
from service.telemetry.metrics import Telemetry
from service.versions.leases import Lease

Composed = TypeVar("Composed")


@dataclass(eq=False)
class _Job(Generic[Composed]):
    """A request, and who waits for it."""

    lease: Lease
    queries: Sequence[str]
    options: AnswerOptions
    compose: Callable[[Answers], Composed]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Composed]
    submitted: float = field(default_factory=time.perf_counter)

    def composed(self, answers: Answers, began: float) -> Composed | Exception:
        """The response, or what kept it from being made; the time in the queue counted with the other stages."""
        queued = {"queue": 1e3 * (began - self.submitted)}
        try:
            return self.compose(dataclasses.replace(answers, milliseconds=queued | answers.milliseconds))
        except Exception as error:
            return error

    def settle(self, outcome: Composed | Exception) -> None:
        """Hand over the outcome, on the event loop, to whoever still waits."""
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Batcher:
    """Threads that answer, and the queue in front of them.

    Args:
        threads: Batches at work at once, each on one thread.
        most_waiting: Queries that may wait; a request beyond is refused at once.
        most_together: Queries that one thread takes at once: what those behind them wait for.
        window_seconds: How long a thread that found work waits for more; 0, not at all.
        telemetry: Told how many wait, and how many are taken at once.
    """

    def __init__(
        self, threads: int, most_waiting: int, most_together: int, window_seconds: float, telemetry: Telemetry
    ) -> None:
        self._most_waiting, self._most_together, self._window_seconds = most_waiting, most_together, window_seconds
        self._telemetry = telemetry
        self._waiting: deque[_Job[Any]] = deque()
        self._queries_waiting = 0
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[threading.Condition] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"predict-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def queries_waiting(self) -> int:
        return self._queries_waiting

    def submit(
        self,
        lease: Lease,
        queries: Sequence[str],
        options: AnswerOptions,
        compose: Callable[[Answers], Composed],
    ) -> asyncio.Future[Composed]:
        """Have a request answered, and its response composed, off the event loop; cancelled, it is dropped.

        Args:
            lease: Of the version that is to give the whole answer; the job holds another one until it is settled.
            queries: One, or a batch.
            options: How they are answered.
            compose: Makes the response of the answers.

        Raises:
            OverloadError: If too many queries wait already.
        """
        loop = asyncio.get_running_loop()
        job: _Job[Composed] = _Job(lease, queries, options, compose, loop, loop.create_future())
        with self._lock:
            if self._waiting and self._queries_waiting + len(queries) > self._most_waiting:
                raise OverloadError(f"{self._queries_waiting:,} queries wait already; try again shortly")
            job.lease = lease.share()
            self._waiting.append(job)
            self._queries_waiting += len(queries)
            self._telemetry.queue.set(self._queries_waiting)
            if self._idle:
                self._idle.pop().notify()  # who fell idle last: its core's caches hold the most
        return job.answer

    def close(self) -> None:
        """Answer what waits, then stop."""
        with self._lock:
            self._closed = True
            for idle in self._idle:
                idle.notify()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        called = threading.Condition(self._lock)
        while self._answer_next(called):
            pass

    def _answer_next(self, called: threading.Condition) -> bool:
        """Take and answer; False once there will be nothing more. A thread that waits holds no lease."""
        jobs = self._take(called)
        if jobs is None:
            return False
        for group in _alike(jobs):
            self._answer_together(group)
            for job in group:
                job.lease.release()
        return True

    def _wait(self, called: threading.Condition, until: Callable[[], bool], seconds: float | None = None) -> None:
        """Be idle, until it holds or the time is up."""
        end = None if seconds is None else time.monotonic() + seconds
        while not until() and (end is None or time.monotonic() < end):
            self._idle.append(called)
            called.wait(None if end is None else end - time.monotonic())
            if called in self._idle:  # nobody called: the time is up
                self._idle.remove(called)

    def _take(self, called: threading.Condition) -> list[_Job[Any]] | None:
        """A fair share of what waits, without what nobody waits for; None once there will be nothing more."""
        with self._lock:
            self._wait(called, lambda: bool(self._waiting) or self._closed)
            if not self._waiting:
                return None
            if self._window_seconds:
                enough = self._most_together * len(self._threads)
                self._wait(called, lambda: self._queries_waiting >= enough or self._closed, self._window_seconds)
            share = min(self._most_together, math.ceil(self._queries_waiting / len(self._threads)))
            taken: list[_Job[Any]] = []
            room = share
            while self._waiting:
                queries = len(self._waiting[0].queries)
                if taken and queries > room:
                    break  # a small request does not wait for a large one that came after it
                job = self._waiting.popleft()
                self._queries_waiting -= queries
                if job.answer.done():
                    job.lease.release()
                else:
                    taken.append(job)
                    room -= queries
            self._telemetry.queue.set(self._queries_waiting)
            return taken

    def _answer_together(self, jobs: list[_Job[Any]]) -> None:
        """Answer jobs of one version; where they fail together, each alone: one's fault must not fail the others."""
        began = time.perf_counter()
        self._telemetry.batch(sum(len(job.queries) for job in jobs))
        try:
            answers = jobs[0].lease.predictor.predict_together([(job.queries, job.options) for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                _settle(jobs, [error])
            else:
                for job in jobs:
                    self._answer_together([job])
            return
        _settle(jobs, [job.composed(answered, began) for job, answered in zip(jobs, answers, strict=True)])


def _alike(jobs: list[_Job[Any]]) -> list[list[_Job[Any]]]:
    """Jobs apart by the version that answers them: right after a swap, there may be two."""
    groups: dict[int, list[_Job[Any]]] = {}
    for job in jobs:
        groups.setdefault(id(job.lease.predictor), []).append(job)
    return list(groups.values())


def _settle(jobs: list[_Job[Any]], outcomes: list[Any]) -> None:
    """Hand all outcomes over in one go: waking an event loop costs more than what it then does."""

    def hand_over() -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.settle(outcome)

    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it all who waited
        jobs[0].loop.call_soon_threadsafe(hand_over)
