"""A simulated fleet: one test machine, on which everything shares the cores, or replicas with machines of their own."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import simpy

from benchmarks.fleet.constants import Compute, Http
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


def one_machine(compute: Compute, http: Http, replicas: int, settings: ReplicaSettings, cores: int, seed: int) -> Fleet:
    """One machine: replicas, load generator and, with two replicas or more, nginx share its cores."""
    environment, random, http = simpy.Environment(), Random(seed), http.beside_idle_cores()
    shared = Cores(environment, cores, compute.slowdown)
    work = Work(compute, http, random)
    members = [Replica(environment, shared, work, settings) for _ in range(replicas)]
    balancer = Balancer(environment, members, random, http, shared)
    send = members[0].answer if replicas == 1 else balancer.send
    return Fleet(environment, balancer, Client(environment, send, http, shared), random)


@dataclass(frozen=True)
class Shape:
    """A fleet whose replicas have machines of their own, and whose nginx and clients are never the bottleneck."""

    replicas: int
    cores: int
    settings: ReplicaSettings
    engine: Engine | None = None


def fleet_of(shape: Shape, compute: Compute, http: Http, seed: int) -> Fleet:
    """Simulate a fleet of this shape."""
    environment, random, http = simpy.Environment(), Random(seed), http.beside_idle_cores()
    work = Work(compute, http, random, shape.engine)
    members = [new_replica(environment, shape, work) for _ in range(shape.replicas)]
    balancer = Balancer(environment, members, random, http)
    return Fleet(environment, balancer, Client(environment, balancer.send, http), random)


def new_replica(environment: simpy.Environment, shape: Shape, work: Work) -> Replica:
    cores = Cores(environment, shape.cores, work.compute.slowdown)
    return Replica(environment, cores, work, shape.settings)
