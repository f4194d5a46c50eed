"""Failures, overload, swaps and a slow engine in a simulated fleet of 100 replicas."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import simpy
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.constants import Step
from benchmarks.fleet.records import Recorded
from benchmarks.fleet.simulation.fleet import Constants, Fleet, Shape, fleet_of
from benchmarks.fleet.simulation.loads import distinct_queries, frequent_queries, poisson
from benchmarks.fleet.simulation.replica import Engine, ReplicaSettings
from recollect.service.threads import usable_cores

REPLICAS, CORES, THREADS, RACK = 100, 2, 1, 10
# The readiness probe of deploy/kubernetes fails twice, every two seconds, before a replica gets no more requests.
REMOVED_SECONDS = 4.0
ENGINE = Engine(median_ms=10, p99_ms=40)
# Different queries whose frequencies follow Zipf's law, and answers in the cache of a replica (64 MB of 1,400 bytes).
DIFFERENT_QUERIES, CACHED_ANSWERS = 1_000_000, 45_000
# The load begins at 0. The event happens at `_EVENT`, and the load ends at `_END`.
_WARM, _EVENT, _END = 0.5, 1.5, 6.5
# Cases that change little with time are shorter.
_STEADY_END, _SWAP_END = 3.0, 4.5
_SATURATED_SECONDS, _CLIENTS_PER_THREAD = 20.0, 48
_SHAPE = Shape(REPLICAS, CORES, ReplicaSettings(threads=THREADS))
_ENGINE_THREADS = 8
# Replicas do not share their local caches, so few of them show their effect.
_CACHED = Shape(10, CORES, ReplicaSettings(threads=THREADS, cached_answers=CACHED_ANSWERS))

Event = Callable[[Fleet], Generator[simpy.Event, Any, None]]


class Row(BaseModel):
    """A case. The figures are those of requests that were due before the event, and within four seconds after it.

    Attributes:
        load: Rate of the requests, as a share of the fleet's capacity.
        rate: The same in requests per second.
        before_p99: 99th percentile of the latency in milliseconds before the event.
        answered: Share of the requests after the event with status 200.
        refused: Share with status 503.
        lost: Requests whose connection broke within these four seconds, whenever they were due, as a share of the
            requests after the event.
        after: Share with status 200 in the last second of the simulation.
    """

    model_config = ConfigDict(frozen=True)

    case: str
    load: float
    rate: float
    before_p50: float
    before_p99: float
    p50: float
    p99: float
    answered: float
    refused: float
    lost: float
    after: float
    after_p99: float


class Scenarios(Recorded):
    """All cases, and the capacities of one replica in requests per second."""

    capacity: float
    engine_capacity: float
    engine_capacity_few_threads: float
    cached_capacity: float
    rows: list[Row]


@dataclass(frozen=True)
class Case:
    """A case, with the load as a share of the capacity of its shape."""

    name: str
    load: float
    event: Event
    shape: Shape = _SHAPE
    seconds: float = _END


def cases(swap_steps: Sequence[Step]) -> list[Case]:
    engine = replace(_SHAPE, settings=replace(_SHAPE.settings, threads=_ENGINE_THREADS), engine=ENGINE)
    swap = _swap_all(swap_steps)
    return [
        Case("nothing happens", 0.6, _nothing, seconds=_STEADY_END),
        Case("nothing happens", 0.8, _nothing, seconds=_STEADY_END),
        Case("overload", 1.2, _nothing, seconds=_STEADY_END),
        Case("overload", 2.0, _nothing, seconds=_STEADY_END),
        Case("a process ends", 0.6, _lose(1, refuses_connections=True), seconds=_STEADY_END),
        Case("a machine is off", 0.6, _lose(1, refuses_connections=False)),
        Case("a rack of 10 machines is off", 0.6, _lose(RACK, refuses_connections=False)),
        Case("all replicas swap at once", 0.6, swap, seconds=_SWAP_END),
        Case("all replicas swap at once", 0.8, swap, seconds=_SWAP_END),
        Case("all replicas with full caches swap at once", 0.6, swap, _CACHED),
        Case("Milvus: ten times slower", 0.6, _slow_engine(10), engine),
    ]


def simulate_all(constants: Constants) -> Scenarios:
    """Simulate all cases, on all cores."""
    constants = replace(constants, http=constants.http.at(constants.compute.reference_ms))
    all_cases = cases(constants.swap_steps)
    engine = all_cases[-1].shape
    shapes = [_SHAPE, engine, replace(engine, settings=_SHAPE.settings), _CACHED]
    steady = replace(constants, drift=None)
    usual, by_engine, by_engine_alone, cached = (capacity(shape, steady) for shape in shapes)
    capacities = {_SHAPE: usual, engine: by_engine, _CACHED: cached}
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        futures = [
            pool.submit(_simulate, number, capacities[case.shape], constants) for number, case in enumerate(all_cases)
        ]
        return Scenarios(
            capacity=usual,
            engine_capacity=by_engine,
            engine_capacity_few_threads=by_engine_alone,
            cached_capacity=cached,
            rows=[future.result() for future in futures],
        )


def capacity(shape: Shape, constants: Constants) -> float:
    """The rate at which one replica of a shape answers a closed loop that keeps all its threads busy."""
    fleet = _start(replace(shape, replicas=1), constants)
    clients = _CLIENTS_PER_THREAD * shape.settings.threads
    fleet.environment.process(fleet.client.closed_loop(clients, _SATURATED_SECONDS, _queries(shape)))
    fleet.environment.run()
    return fleet.client.outcome.answered_per_second(_WARM, _SATURATED_SECONDS)


def _simulate(number: int, capacity_of_one: float, constants: Constants) -> Row:
    """Simulate a case by its number, because a process cannot send its event to another process."""
    case = cases(constants.swap_steps)[number]
    fleet = _start(case.shape, constants)
    environment, rate = fleet.environment, case.load * case.shape.replicas * capacity_of_one
    environment.process(fleet.client.open_loop(poisson(rate, case.seconds, fleet.random), _queries(case.shape)))
    environment.process(case.event(fleet))
    environment.run()
    outcome = fleet.client.outcome
    before = outcome.due_in((_WARM, _EVENT))
    during = outcome.due_in((_EVENT, _EVENT + REMOVED_SECONDS))
    after = outcome.due_in((case.seconds - 1, case.seconds))
    return Row(
        case=case.name,
        load=case.load,
        rate=rate,
        before_p50=before.percentile_ms(50),
        before_p99=before.percentile_ms(99),
        p50=during.percentile_ms(50),
        p99=during.percentile_ms(99),
        answered=during.share(200),
        refused=during.refused,
        lost=outcome.lost_within(_EVENT, _EVENT + REMOVED_SECONDS) / max(1, during.sent),
        after=after.share(200),
        after_p99=after.percentile_ms(99),
    )


def _start(shape: Shape, constants: Constants) -> Fleet:
    """A fleet whose caches hold the most frequent queries."""
    fleet = fleet_of(shape, constants, seed=1)
    for replica in fleet.balancer.replicas:
        replica.fill_cache()
    return fleet


def _queries(shape: Shape) -> Callable[[], int]:
    return frequent_queries(DIFFERENT_QUERIES, seed=1) if shape.settings.cached_answers else distinct_queries()


def _nothing(fleet: Fleet) -> Generator[simpy.Event, Any, None]:
    yield fleet.environment.timeout(_EVENT)


def _lose(count: int, refuses_connections: bool) -> Event:
    """Replicas are lost; the balancer notices it when their readiness probe has failed."""

    def lose(fleet: Fleet) -> Generator[simpy.Event, Any, None]:
        yield fleet.environment.timeout(_EVENT)
        for replica in fleet.balancer.replicas[:count]:
            replica.stop(refuses_connections)
        yield fleet.environment.timeout(REMOVED_SECONDS)
        for place in range(count):
            fleet.balancer.remove(place)

    return lose


def _swap_all(steps: Sequence[Step]) -> Event:
    """All replicas open another version; their caches have no answers of it."""

    def swap(fleet: Fleet) -> Generator[simpy.Event, Any, None]:
        yield fleet.environment.timeout(_EVENT)
        for replica in fleet.balancer.replicas:
            fleet.environment.process(replica.open_version(1, steps))

    return swap


def _slow_engine(factor: float) -> Event:
    """Calls of the engine take longer for 4 seconds."""

    def slow(fleet: Fleet) -> Generator[simpy.Event, Any, None]:
        yield fleet.environment.timeout(_EVENT)
        work = fleet.balancer.replicas[0].work  # all replicas share it
        usual = work.engine
        assert usual is not None
        work.engine = Engine(factor * usual.median_ms, factor * usual.p99_ms)
        yield fleet.environment.timeout(REMOVED_SECONDS)
        work.engine = usual

    return slow
