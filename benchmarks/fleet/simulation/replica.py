"""A simulated replica, with the rules of `service/serving`: event loop, answer cache, queue and threads.

The rules are those of `service.serving.batcher`: a free thread takes its share of the queries that wait, at most
`encode_together`; equal queries are computed once; a request that would exceed `max_queue` is refused. A request is one
query of cost 1.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import simpy

from benchmarks.fleet.constants import Compute, DeploymentCosts, Http, Step, ThreadCost
from benchmarks.fleet.simulation.cores import Cores, Thread

# The status of an answer; LOST is a connection that broke.
OK, OVERLOADED, LOST = 200, 503, 0
Steps = Generator[simpy.Event, Any, int]

# While all threads compute, the thread that opens a version rests this number of seconds for each second of CPU time.
# Then it waits for an idle thread: it checks at most `_POLLS` times, once in `_POLL_SECONDS`.
_REST_FACTOR, _POLLS, _POLL_SECONDS = 4.0, 10, 0.002
# Number of batches over which the factor after pauses is averaged.
_SLOW_BATCHES = 10


@dataclass(frozen=True)
class Engine:
    """An engine such as Milvus, which searches the keys of a batch while its thread waits.

    The time of a call has a log-normal distribution with this median and 99th percentile.
    """

    median_ms: float
    p99_ms: float

    def seconds(self, random: Random) -> float:
        if self.p99_ms == self.median_ms:
            return self.median_ms / 1e3
        sigma = math.log(self.p99_ms / self.median_ms) / 2.3263  # the 99th percentile of a normal distribution
        return random.lognormvariate(math.log(self.median_ms / 1e3), sigma)


@dataclass(frozen=True)
class ReplicaSettings:
    """Settings of `recollect serve`, with its defaults; `cached_answers` is the number of answers in the cache."""

    threads: int = 1
    encode_together: int = 32
    max_queue: int = 256
    cached_answers: int = 0


class Work:
    """The CPU times of a replica, computed from the measured times.

    Attributes:
        compute: Times of the predictor.
        engine: Searches the keys; None if the replica has the keys in files.
        read: Time of the event loop to read a request and to look for its answer in the cache. If the request wakes up
            the event loop, this time includes the whole difference.
        answer_cached: Time of the event loop for the rest of an answer from the cache.
        answer: The same for a computed answer.
        refuse: The same for a refusal.

    Args:
        compute: Times of the predictor.
        http: Times of the service beside the predictor.
        costs: Costs of a request in the replica's deployment.
        random: Source of the times of the engine.
        engine: Searches the keys; None if the replica has the keys in files.
    """

    def __init__(
        self, compute: Compute, http: Http, costs: DeploymentCosts, random: Random, engine: Engine | None = None
    ) -> None:
        self.compute, self.engine = compute, engine
        half_ms = http.cached_loop.busy_ms / 2
        self.answer_cached = ThreadCost.constant(half_ms)
        self.read = http.cached_loop.without(self.answer_cached)
        self.answer = costs.loop.without(self.read)
        refused = costs.refused
        self.refuse = ThreadCost.constant(max(0.0, refused.loop_ms - self.read.after(refused.pause_ms)))
        self._random = random
        self._mean_ms = float(np.mean(compute.query_ms))
        pauses = sorted(http.alone_ms)
        self._pauses_ms = [0, *pauses]
        self._sizes = sorted(http.lock_share)
        self._lock_shares = [http.lock_share[size] for size in self._sizes]
        self._alone_ms = [self._mean_ms, *(max(self._mean_ms, http.alone_ms[pause]) for pause in pauses)]

    def batch_seconds(self, queries: Sequence[int]) -> float:
        """CPU time of a batch on a busy thread: the mean for its size, plus its queries' differences from the mean.

        Args:
            queries: Numbers of the queries. After the last measured query, the first one follows.
        """
        size_ms = self.compute.size_ms(len(queries), in_engine=self.engine is not None)
        known_ms = self.compute.query_ms
        return (size_ms + sum([known_ms[number % len(known_ms)] - self._mean_ms for number in queries])) / 1e3

    def lock_seconds(self, queries: int, loop_seconds: float) -> float:
        """Time for which a batch waits for the interpreter lock.

        Args:
            queries: Number of queries in the batch. A batch beyond the largest measured size waits like this size.
            loop_seconds: CPU time of the event loop during the batch.
        """
        return loop_seconds * float(np.interp(queries, self._sizes, self._lock_shares))

    def pause_factor(self, pause_seconds: float) -> float:
        """Factor by which a query takes longer after a pause of the thread."""
        return float(np.interp(1e3 * pause_seconds, self._pauses_ms, self._alone_ms)) / self._mean_ms

    def engine_seconds(self) -> float:
        return self.engine.seconds(self._random) if self.engine else 0.0


@dataclass(eq=False)
class _Job:
    """A query in the queue or in a batch. `done` happens with True, or with False if the replica is lost."""

    query: int
    done: simpy.Event


@dataclass(eq=False)
class Replica:
    """A replica. After `stop`, it never runs again; a restart is a new replica.

    Attributes:
        environment: Clock of the simulation.
        cores: Cores of the replica's machine.
        work: CPU times.
        settings: Settings of the service.
        version: Part of the key of a cached answer.
        alive: Whether the replica runs.
        refuses_connections: Whether a connection to a stopped replica fails at once, as after the end of a process. If
            not, it gets no answer, as after a power failure.
        compute_seconds: CPU time of the computing threads so far.
        batches: Number of batches that they have begun.
        queries: Number of queries in these batches.
    """

    environment: simpy.Environment
    cores: Cores
    work: Work
    settings: ReplicaSettings
    version: int = 0
    alive: bool = True
    refuses_connections: bool = True
    compute_seconds: float = 0.0
    batches: int = 0
    queries: int = 0
    _queue: deque[_Job] = field(default_factory=deque)
    _busy: int = 0
    _computing: set[simpy.Event] = field(default_factory=set)
    _joinable: dict[int, _Job] = field(default_factory=dict)
    _idle: list[simpy.Event] = field(default_factory=list)
    _cache: OrderedDict[tuple[int, int], None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._loop = Thread(self.environment, self.cores)
        for _ in range(self.settings.threads):
            self.environment.process(self._compute())

    def answer(self, query: int) -> Steps:
        """The steps of a request; their result is its status."""
        yield self._loop.run(self.work.read)
        if not self.alive:
            return LOST
        key = (self.version, query)
        if key in self._cache:
            yield self._loop.run(self.work.answer_cached)
            if key in self._cache:  # it may have been removed meanwhile
                self._cache.move_to_end(key)
            return self._unless_lost(OK)
        job = self._submit(query)
        if job is None:
            yield self._loop.run(self.work.refuse)
            return self._unless_lost(OVERLOADED)
        if not (yield job.done):
            return LOST
        yield self._loop.run(self.work.answer)
        self._remember(key)
        return self._unless_lost(OK)

    def _unless_lost(self, status: int) -> int:
        """The status of a finished answer, whose connection broke if the replica ended meanwhile."""
        return status if self.alive else LOST

    def stop(self, refuses_connections: bool) -> None:
        """End the replica now. All its requests are lost."""
        self.alive, self.refuses_connections = False, refuses_connections
        for job in self._joinable.values():
            job.done.succeed(False)
        for task in self._computing:
            self.cores.stop(task)
        self._joinable.clear()
        self._queue.clear()

    def fill_cache(self) -> None:
        """Fill the cache with the answers to the first queries, which are the most frequent ones."""
        self._cache.update(((self.version, query), None) for query in range(self.settings.cached_answers))

    def open_version(self, version: int, steps: Sequence[Step]) -> Generator[simpy.Event, Any, None]:
        """Open a version step by step on a separate thread, then serve it.

        While a step keeps Python's global interpreter lock, the event loop waits. The thread pauses after each step by
        the rules of `service.versions.throttle`: in proportion to the share of the computing threads that are busy, and
        then until one of them is idle.
        """
        for step in steps:
            yield self.cores.run((step.cpu_ms - step.locked_ms) / 1e3)
            if step.locked_ms:
                yield self._loop.run(ThreadCost.constant(step.locked_ms))
            yield self.environment.timeout(_REST_FACTOR * self._busy / self.settings.threads * step.cpu_ms / 1e3)
            for _ in range(_POLLS):
                if self._busy < self.settings.threads:
                    break
                yield self.environment.timeout(_POLL_SECONDS)
        self.version = version

    def _submit(self, query: int) -> _Job | None:
        """Queue a query, or join an equal one; None if the queue is full."""
        if (job := self._joinable.get(query)) is not None:
            return job
        if self._queue and len(self._queue) + 1 > self.settings.max_queue:
            return None
        job = self._joinable[query] = _Job(query, self.environment.event())
        self._queue.append(job)
        if self._idle:
            self._idle.pop().succeed()
        return job

    def _compute(self) -> Generator[simpy.Event, Any, None]:
        """The steps of a thread: take a batch, compute it, and give its answers to the event loop."""
        factor = 1.0  # an exponentially weighted mean: a pause slows down the next batches too
        idle_since = self.environment.now
        while self.alive:
            while not self._queue:
                woken = self.environment.event()
                self._idle.append(woken)
                yield woken
            batch = self._take()
            if not batch:  # another thread was faster
                continue
            self._busy += 1
            factor += (self.work.pause_factor(self.environment.now - idle_since) - factor) / _SLOW_BATCHES
            if self.work.engine is not None:
                yield self.environment.timeout(self.work.engine_seconds())
            seconds = factor * self.work.batch_seconds([job.query for job in batch])
            self.compute_seconds += self.cores.slowness * seconds
            self.batches += 1
            self.queries += len(batch)
            yield from self._run(len(batch), seconds)
            self._busy -= 1
            idle_since = self.environment.now
            for job in batch:
                if self._joinable.get(job.query) is job:
                    del self._joinable[job.query]
                    job.done.succeed(True)

    def _run(self, queries: int, seconds: float) -> Generator[simpy.Event, Any, None]:
        """Compute a batch that needs this CPU time, then wait for the interpreter lock.

        The wait is a share of the CPU time of the event loop's tasks that began during the computation. It overlaps
        with the waits for a core.
        """
        loop_seconds, waited, task = self._loop.cpu_seconds, self.cores.waited, self.cores.run(seconds)
        self._computing.add(task)
        yield task
        self._computing.remove(task)
        locked = self.cores.slowness * self.work.lock_seconds(queries, self._loop.cpu_seconds - loop_seconds)
        yield self.environment.timeout(max(0.0, locked - (self.cores.waited - waited)))

    def _take(self) -> list[_Job]:
        """The share of the waiting queries that a free thread takes."""
        shares = 1 if self.work.compute.is_faster_together else self.settings.threads
        room = min(self.settings.encode_together, math.ceil(len(self._queue) / shares))
        return [self._queue.popleft() for _ in range(room)]

    def _remember(self, key: tuple[int, int]) -> None:
        if self.settings.cached_answers:
            self._cache[key] = None
            if len(self._cache) > self.settings.cached_answers:
                self._cache.popitem(last=False)
