"""A simulated fleet: one test machine, on which everything shares the cores, or replicas with machines of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import simpy

from benchmarks.fleet.constants import Compute, Drift, Http, Step, Swap
from benchmarks.fleet.intervals import Interval
from benchmarks.fleet.records import read
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
    def computed(self) -> Interval:
        """The work of the computing threads so far, without slowdown by other cores."""
        replicas = self.balancer.replicas
        return Interval(
            end=self.environment.now,
            compute_seconds=sum(replica.compute_seconds for replica in replicas),
            queries=sum(replica.queries for replica in replicas),
            batches=sum(replica.batches for replica in replicas),
        )


@dataclass(frozen=True)
class Constants:
    """The measured constants of a simulation; without `drift`, the speed of the machines is constant."""

    compute: Compute
    http: Http
    swap: Swap
    drift: Drift | None = None

    @classmethod
    def recorded(cls) -> Constants:
        """The recorded constants of the int8 encoder.

        Raises:
            OSError: If a record is missing.
        """
        return cls(read(Compute, "compute-minilm"), read(Http, "http"), read(Swap, "swap"), read(Drift, "drift"))

    def at(self, reference_ms: float) -> Constants:
        """The constants at the speed at which the reference takes so many milliseconds, without a busy core beside."""
        return replace(self, compute=self.compute.at(reference_ms, slowdown=1.0), http=self.http.at(reference_ms))

    @property
    def swap_steps(self) -> list[Step]:
        """The steps in which a replica opens a version, at the speed of `compute`."""
        return self.swap.steps_at(self.compute.reference_ms)

    def slowness(self, random: Random) -> Callable[[float], float]:
        """The measured changes of speed, from a random moment on."""
        drift = self.drift
        if drift is None:
            return lambda _: 1.0
        start = random.uniform(0, drift.seconds)
        return lambda seconds: drift.at(start + seconds)


def one_machine(
    constants: Constants,
    replicas: int,
    settings: ReplicaSettings,
    cores: int,
    seed: int,
    slowness: Callable[[float], float] = lambda _: 1.0,
) -> Fleet:
    """One machine: replicas, load generator and, with two replicas or more, nginx share its cores.

    Args:
        constants: The constants; `drift` is not used.
        replicas: Number of replicas.
        settings: Their settings.
        cores: Number of cores.
        seed: Seed of the waits, and of the choice among replicas.
        slowness: Factor by which a task takes longer that starts at this time, in seconds.
    """
    environment, random, http = simpy.Environment(), Random(seed), constants.http
    costs = http.single if replicas == 1 else http.proxied
    shared = Cores(environment, cores - costs.idle_cores, constants.compute.slowdown, slowness)
    work = Work(constants.compute, http, costs, random)
    members = [Replica(environment, shared, work, settings) for _ in range(replicas)]
    balancer = Balancer(environment, members, random, costs.proxy, shared)
    client = Client(environment, members[0].answer if replicas == 1 else balancer.send, costs, random, shared)
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
    environment, random, http = simpy.Environment(), Random(seed), constants.http
    work = Work(constants.compute, http, http.single, random, shape.engine)

    def replica() -> Replica:
        count, slowness = shape.cores - http.single.idle_cores, constants.slowness(random)
        cores = Cores(environment, count, constants.compute.slowdown, slowness)
        return Replica(environment, cores, work, shape.settings)

    balancer = Balancer(environment, [replica() for _ in range(shape.replicas)], random, http.proxied.proxy)
    client = Client(environment, balancer.send, http.proxied, random)
    return Fleet(environment, balancer, client, random)
