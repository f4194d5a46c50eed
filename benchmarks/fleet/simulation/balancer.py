"""A simulated nginx with the rules of deploy/nginx.conf.

A request goes to the replica with the fewest running requests. If the replica is lost or answers 503, the request goes
to one other replica. A connection to a stopped process is refused at once; without an answer, it fails after
`proxy_connect_timeout`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import simpy

from benchmarks.fleet.constants import ThreadCost
from benchmarks.fleet.simulation.cores import Cores, Thread
from benchmarks.fleet.simulation.replica import LOST, OK, Replica, Steps

_TRIES = 2
_CONNECT_TIMEOUT_SECONDS, _REFUSED_SECONDS = 0.5, 0.001


@dataclass(eq=False)
class Balancer:
    """Sends requests to replicas.

    Attributes:
        environment: Clock of the simulation.
        replicas: The replicas.
        random: Chooses among replicas with equally many requests.
        cost: CPU time of a request in nginx.
        cores: Cores that nginx shares with the replicas; None if nginx has a machine of its own, which is never the
            bottleneck.
    """

    environment: simpy.Environment
    replicas: list[Replica]
    random: Random
    cost: ThreadCost
    cores: Cores | None = None
    _running: list[int] = field(init=False)
    _serving: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._running, self._serving = [0] * len(self.replicas), list(range(len(self.replicas)))
        self._thread = Thread(self.environment, self.cores) if self.cores else None
        self._half = self.cost.times(0.5)

    def send(self, query: int) -> Steps:
        """The steps of a request; their result is its status."""
        status, tried = LOST, list[int]()
        for _ in range(_TRIES):
            place = self._choose(tried)
            if place is None:
                break
            tried.append(place)
            self._running[place] += 1
            yield from self._forward()
            status = yield from self._try(self.replicas[place], query)
            self._running[place] -= 1
            if status == OK:
                break
        yield from self._forward()
        return status

    def remove(self, place: int) -> None:
        """Send no more requests to a place, as Kubernetes does for a replica that is not ready."""
        self._serving.remove(place)

    def _try(self, replica: Replica, query: int) -> Steps:
        if not replica.alive:
            yield self.environment.timeout(
                _REFUSED_SECONDS if replica.refuses_connections else _CONNECT_TIMEOUT_SECONDS
            )
            return LOST
        return (yield from replica.answer(query))

    def _forward(self) -> Generator[simpy.Event, Any, None]:
        """Read a request or an answer, and send it."""
        if self._thread:
            yield self._thread.run(self._half)
        else:
            yield self.environment.timeout(self._half.busy_ms / 1e3)

    def _choose(self, tried: list[int]) -> int | None:
        """The place with the fewest running requests; None if there is no place left."""
        places = [place for place in self._serving if place not in tried]
        if not places:
            return None
        fewest = min([self._running[place] for place in places])
        return self.random.choice([place for place in places if self._running[place] == fewest])
