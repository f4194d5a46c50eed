"""Loads for a simulated fleet, and their outcome: an open loop with Poisson arrivals, and a closed loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import simpy

from benchmarks.fleet.constants import DeploymentCosts
from benchmarks.fleet.simulation.cores import Cores, Thread
from benchmarks.fleet.simulation.replica import LOST, OK, OVERLOADED, Steps

Send = Callable[[int], Steps]


@dataclass
class Outcome:
    """The requests of a load: when each was due, how long it took, and its status. Times are seconds."""

    due: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    sent: int = 0

    def record(self, due: float, now: float, status: int) -> None:
        self.due.append(due)
        self.seconds.append(now - due)
        self.status.append(status)

    def due_in(self, *spans: tuple[float, float]) -> Outcome:
        """The requests that were due in one of these spans, each from its start to its end."""
        found = Outcome()
        for due, seconds, status in zip(self.due, self.seconds, self.status, strict=True):
            if any(start <= due < end for start, end in spans):
                found.record(due, due + seconds, status)
        found.sent = len(found.due)
        return found

    def count(self, *statuses: int) -> int:
        """The number of requests with one of these statuses."""
        return sum(each in statuses for each in self.status)

    def share(self, *statuses: int) -> float:
        """The share of the requests with one of these statuses."""
        return self.count(*statuses) / max(1, len(self.status))

    @property
    def refused(self) -> float:
        return self.share(OVERLOADED)

    @property
    def lost(self) -> float:
        return 1 - self.share(OK, OVERLOADED)

    def lost_within(self, start: float, end: float) -> int:
        """The number of requests that were lost in this time, whenever they were due."""
        return self._ended(LOST, start, end)

    def percentile_ms(self, percent: float) -> float:
        """A percentile of the latency of answered requests; 0 if there are none."""
        answered = [each for each, status in zip(self.seconds, self.status, strict=True) if status == OK]
        return 1e3 * float(np.percentile(answered or [0.0], percent))

    def answered_per_second(self, start: float, end: float) -> float:
        """Rate at which requests were answered in this time."""
        return self._ended(OK, start, end) / (end - start)

    def _ended(self, status: int, start: float, end: float) -> int:
        """The number of requests that ended in this time with this status."""
        ends = (due + each for due, each, of in zip(self.due, self.seconds, self.status, strict=True) if of == status)
        return sum(start <= each < end for each in ends)


class Client:
    """A load generator.

    Args:
        environment: Clock of the simulation.
        send: The steps of a request.
        costs: CPU time of a request in the load generator, and the waits of an answer. Waits are added to the latency,
            and delay nothing else.
        random: Source of the waits.
        cores: Cores that the load generator shares with the service; None if it has a machine of its own.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        send: Send,
        costs: DeploymentCosts,
        random: Random,
        cores: Cores | None = None,
    ) -> None:
        self._environment, self._send, self._random = environment, send, random
        self._costs, self._half, self._cores = costs, costs.client.times(0.5), cores
        self._thread = Thread(environment, cores) if cores else None
        self.outcome = Outcome()

    def request(self, query: int) -> Generator[simpy.Event, Any, None]:
        """The steps of one request."""
        due, wait = self._environment.now, self._wait_seconds()
        self.outcome.sent += 1
        if self._thread:
            yield self._thread.run(self._half)
        status = yield from self._send(query)
        if self._thread:
            yield self._thread.run(self._half)
        self.outcome.record(due, max(due, self._environment.now + wait * (status == OK)), status)

    def _wait_seconds(self) -> float:
        """A random one of the measured waits, in seconds."""
        is_busy = self._cores is not None and self._cores.are_busy
        waits_ms = self._costs.busy_wait_ms if is_busy else self._costs.wait_ms
        place = self._random.uniform(0, len(waits_ms) - 1)
        return float(np.interp(place, range(len(waits_ms)), waits_ms)) / 1e3

    def open_loop(self, due: Iterable[float], queries: Callable[[], int]) -> Generator[simpy.Event, Any, None]:
        """The steps of an open loop: requests arrive at these times, whether or not earlier ones are answered."""
        start = self._environment.now
        for each in due:
            yield self._environment.timeout(start + each - self._environment.now)
            self._environment.process(self.request(queries()))

    def closed_loop(
        self, clients: int, seconds: float, queries: Callable[[], int]
    ) -> Generator[simpy.Event, Any, None]:
        """The steps of a closed loop: each client sends its next request when its last one is answered."""
        end = self._environment.now + seconds

        def work() -> Generator[simpy.Event, Any, None]:
            while self._environment.now < end:
                yield from self.request(queries())

        yield simpy.AllOf(self._environment, [self._environment.process(work()) for _ in range(clients)])


def poisson(rate: float, seconds: float, random: Random) -> Iterator[float]:
    """Arrivals of a Poisson process with this rate."""
    due = random.expovariate(rate)
    while due < seconds:
        yield due
        due += random.expovariate(rate)


def distinct_queries() -> Callable[[], int]:
    """Queries that are all different, so that no answer is in the cache."""
    numbers = iter(range(1 << 62))
    return lambda: next(numbers)


def frequent_queries(count: int, seed: int) -> Callable[[], int]:
    """Queries whose frequencies follow Zipf's law: the n-th most frequent one has a frequency proportional to 1 / n."""
    bounds = np.cumsum(1 / np.arange(1, count + 1))
    random = np.random.default_rng(seed)

    def draw() -> Generator[int, None, None]:
        while True:
            yield from np.searchsorted(bounds, random.uniform(0, bounds[-1], 4096)).tolist()

    drawn = draw()
    return lambda: next(drawn)
