"""A simulated fleet: one test machine, on which everything shares the cores, or replicas with machines of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import simpy

from benchmarks.fleet.constants import Compute, Drift, Http, read
from benchmarks.fleet.simulation.balancer import Balancer
from benchmarks.fleet.simulation.cores import Cores
from benchmarks.fleet.simulation.loads import Client
from benchmarks.fleet.simulation.replica import Engine, Replica, ReplicaSettings, Work


@dataclass(frozen=True)
class Fleet:
    """A simulated fleet with its load generator."""

    environment: simpy.Environment
    balancer: Balancer
    client: Client
    random: Random

    @property
    def compute_seconds(self) -> float:
        """CPU time of the computing threads so far, without slowdown by other cores."""
        return sum(replica.compute_seconds for replica in self.balancer.replicas)

    @property
    def batch(self) -> float:
        """Mean number of queries in the batches so far."""
        batches = sum(replica.batches for replica in self.balancer.replicas)
        return sum(replica.queries for replica in self.balancer.replicas) / max(1, batches)


@dataclass(frozen=True)
class Constants:
    """The measured constants of a simulation; without `drift`, the speed of the machines is constant."""

    compute: Compute
    http: Http
    drift: Drift | None = None

    @classmethod
    def recorded(cls) -> Constants:
        """The recorded constants of the int8 encoder.

        Raises:
            OSError: If a record is missing.
        """
        return cls(read(Compute, "compute-minilm"), read(Http, "http"), read(Drift, "drift"))

    def at(self, reference_ms: float) -> Constants:
        """The constants at the speed at which the reference takes so many milliseconds, without a busy core beside."""
        return replace(self, compute=self.compute.at(reference_ms, slowdown=1.0), http=self.http.at(reference_ms))

    def slowness(self, random: Random) -> Callable[[float], float]:
        """The measured changes of speed, from a random moment on."""
        drift = self.drift
        if drift is None:
            return lambda _: 1.0
        start = random.uniform(0, drift.seconds)
        return lambda seconds: drift.at(start + seconds)


def one_machine(constants: Constants, replicas: int, settings: ReplicaSettings, cores: int, seed: int) -> Fleet:
    """One machine: replicas, load generator and, with two replicas or more, nginx share its cores."""
    environment, random, http = simpy.Environment(), Random(seed), constants.http.beside_idle_cores()
    shared = Cores(environment, cores, constants.compute.slowdown, constants.slowness(random))
    work = Work(constants.compute, http, random)
    members = [Replica(environment, shared, work, settings) for _ in range(replicas)]
    balancer = Balancer(environment, members, random, http, shared)
    send, wait_ms = (members[0].answer, http.wait_ms) if replicas == 1 else (balancer.send, http.proxied_wait_ms)
    client = Client(environment, send, http, wait_ms, random, shared)
    return Fleet(environment, balancer, client, random)


@dataclass(frozen=True)
class Shape:
    """A fleet whose replicas have machines of their own, and whose nginx and clients are never the bottleneck."""

    replicas: int
    cores: int
    settings: ReplicaSettings
    engine: Engine | None = None


def fleet_of(shape: Shape, constants: Constants, seed: int) -> Fleet:
    """Simulate a fleet of this shape. The speeds of its machines change independently."""
    environment, random, http = simpy.Environment(), Random(seed), constants.http.beside_idle_cores()
    work = Work(constants.compute, http, random, shape.engine)

    def replica() -> Replica:
        cores = Cores(environment, shape.cores, constants.compute.slowdown, constants.slowness(random))
        return Replica(environment, cores, work, shape.settings)

    balancer = Balancer(environment, [replica() for _ in range(shape.replicas)], random, http)
    client = Client(environment, balancer.send, http, http.proxied_wait_ms, random)
    return Fleet(environment, balancer, client, random)
