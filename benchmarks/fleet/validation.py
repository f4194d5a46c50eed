"""Measure the real service, and predict the same figures.

A prediction uses the recorded constants, and the arrival times of the requests. The rates of the open loops are shares
of the measured rate at saturation. During two of the loads, the service swaps to another version, or a replica is
killed; their figures are those of the requests that were due in the four seconds afterwards.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import simpy
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.constants import Changes, Compute, Http, Recorded
from benchmarks.fleet.measurements.service_load import Served, served
from benchmarks.fleet.simulation.fleet import Fleet, one_machine
from benchmarks.fleet.simulation.loads import distinct_queries
from benchmarks.fleet.simulation.replica import OK, ReplicaSettings
from loadtests.load import Exchange, arrivals, latency_percentiles
from loadtests.swaps import add_changed_version, copied_versions
from service.threads import usable_cores

LOADS = (0.3, 0.6, 0.8)
# Load and queue of the overload. The running requests must be fewer than the connections of the load generator.
_OVERLOAD, _SHORT_QUEUE = 1.3, 8
_CLIENTS, _WARM_SECONDS = 64, 2.0
# The load during an event. The event happens after this share of the load, and its figures are of so many seconds.
_EVENT_LOAD, _EVENT_SHARE, _AFTER_SECONDS = 0.5, 0.3, 4.0
# The service looks this often for an activated version.
_POLL_SECONDS = 0.1
# A load is simulated this often, with other random service times.
_REPETITIONS = 9

# What happens during a load: nothing, a replica is killed, or the service swaps to a version without equal files.
Event = Literal["", "one replica is killed", "swap"]


class Figures(BaseModel):
    """Figures of one load. Rates are requests per second.

    Attributes:
        load: Share of the rate at saturation, or `saturated`.
        rate: Rate of an open loop; None for a closed loop.
        seed: Seed of the arrival times of an open loop.
        max_queue: `--max-queue`.
        answered: Rate of answered requests.
        p50: Median latency in milliseconds.
        p99: 99th percentile of the latency.
        refused: Share of the requests with status 503.
        lost: Share of the requests without an answer.
        event: What happens during the load.
    """

    model_config = ConfigDict(frozen=True)

    load: str
    rate: float | None
    seed: int
    max_queue: int
    answered: float
    p50: float
    p99: float
    refused: float
    lost: float = 0.0
    event: Event = ""


class ServiceFigures(Recorded):
    """Measured figures of the real service; each load lasts `seconds`. `cores` is the number of the machine's cores."""

    replicas: int
    cores: int
    seconds: float
    figures: list[Figures]


class Pair(BaseModel):
    """A measured figure, and its prediction: the median, the least and the most of the simulations."""

    model_config = ConfigDict(frozen=True)

    replicas: int
    load: str
    figure: str
    measured: float
    predicted: float
    least: float
    most: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


class Validation(Recorded):
    """Measured figures with their predictions."""

    pairs: list[Pair]


def measure_service(store: Path, replicas: int, seconds: float) -> ServiceFigures:
    """Measure the service at saturation, at the loads, with a short queue under overload, and during events.

    Raises:
        ServiceError, ReplicaError, MissingProgramError: If the store cannot be served.
    """
    most = ReplicaSettings().max_queue
    with served(store, replicas, "--cache-mb", "0") as service:
        service.closed_loop(_CLIENTS, min(_WARM_SECONDS, seconds))
        exchanges, duration = service.closed_loop(_CLIENTS, seconds)
        saturated = _figures("saturated", None, 0, most, exchanges, duration)
        figures = [saturated]
        for number, load in enumerate(LOADS):
            figures.append(_open_loop(service, f"{load:.0%}", load * saturated.answered, most, seconds, number))
    with served(store, replicas, "--cache-mb", "0", "--max-queue", str(_SHORT_QUEUE)) as service:
        service.closed_loop(1, min(_WARM_SECONDS, seconds))
        rate = _OVERLOAD * saturated.answered
        figures.append(_open_loop(service, f"{_OVERLOAD:.0%}", rate, _SHORT_QUEUE, seconds, len(LOADS)))
    rate = _EVENT_LOAD * saturated.answered
    with copied_versions(store, 1) as (copied, versions):
        changed = add_changed_version(copied, versions[0], 1)
        with served(copied.root, replicas, "--cache-mb", "0", "--poll-seconds", f"{_POLL_SECONDS}") as service:
            service.closed_loop(_CLIENTS, min(_WARM_SECONDS, seconds))
            figures.append(_during(service, "swap", lambda: copied.activate(changed), rate, seconds))
            if replicas > 1:
                killed = service.replicas[0]
                event: Event = "one replica is killed"
                figures.append(_during(service, event, lambda: os.kill(killed, signal.SIGKILL), rate, seconds))
    return ServiceFigures(replicas=replicas, cores=usable_cores(), seconds=seconds, figures=figures)


def _open_loop(service: Served, load: str, rate: float, max_queue: int, seconds: float, seed: int) -> Figures:
    return _figures(load, rate, seed, max_queue, service.open_loop(rate, seconds, seed), seconds)


def _during(service: Served, event: Event, happen: Callable[[], object], rate: float, seconds: float) -> Figures:
    """Run an open loop during an event."""
    seed = len(LOADS) + 1
    due = np.array(arrivals(rate, seconds, seed))
    timer = threading.Timer(_EVENT_SHARE * seconds, happen)
    timer.start()
    exchanges = service.open_loop(rate, seconds, seed)
    timer.join()
    after = [each for each in exchanges if each.number >= 0 and _is_after(float(due[each.number]), seconds)]
    figures = _figures(f"{_EVENT_LOAD:.0%}, {event}", rate, seed, ReplicaSettings().max_queue, after, _AFTER_SECONDS)
    return figures.model_copy(update={"event": event})


def _is_after(due: float, seconds: float) -> bool:
    """Whether a request was due in the seconds after the event."""
    return 0 <= due - _EVENT_SHARE * seconds < _AFTER_SECONDS


def _figures(
    load: str, rate: float | None, seed: int, max_queue: int, exchanges: list[Exchange], seconds: float
) -> Figures:
    statuses = np.array([exchange.status for exchange in exchanges])
    p50, p99 = latency_percentiles(exchanges, 50, 99)
    return Figures(
        load=load,
        rate=rate,
        seed=seed,
        max_queue=max_queue,
        answered=float((statuses == 200).sum() / seconds),
        p50=p50,
        p99=p99,
        refused=float((statuses == 503).mean()),
        lost=float(((statuses != 200) & (statuses != 503)).mean()),
    )


def predict(measured: Figures, fleet: Fleet, seconds: float, swap_cpu_seconds: float) -> Figures:
    """Simulate a measured load."""
    environment, client, start, end = fleet.environment, fleet.client, 0.0, math.inf
    duration = _AFTER_SECONDS if measured.event else seconds
    if measured.rate is None:
        start = _WARM_SECONDS
        environment.process(client.closed_loop(_CLIENTS, start + seconds, distinct_queries()))
    else:
        due = arrivals(measured.rate, seconds, measured.seed)
        environment.process(client.open_loop(due, distinct_queries()))
    if measured.event:
        start = _EVENT_SHARE * seconds
        end = start + duration
        environment.process(_happen(measured.event, fleet, start, swap_cpu_seconds))
    environment.run()
    outcome = client.outcome.between(start, end)
    return measured.model_copy(
        update={
            "answered": outcome.share(OK) * outcome.sent / duration,
            "p50": outcome.percentile_ms(50),
            "p99": outcome.percentile_ms(99),
            "refused": outcome.refused,
            "lost": outcome.lost,
        }
    )


def _happen(event: Event, fleet: Fleet, seconds: float, swap_cpu_seconds: float) -> Generator[simpy.Event, Any, None]:
    """The steps of an event after some seconds."""
    yield fleet.environment.timeout(seconds)
    if event == "swap":
        for replica in fleet.balancer.replicas:
            fleet.environment.process(replica.open_version(1, swap_cpu_seconds))
    else:
        fleet.balancer.replicas[0].stop(refuses_connections=True)


def validate(measured: list[ServiceFigures], compute: Compute, http: Http, changes: Changes) -> Validation:
    """Predict measured figures."""
    pairs, swap = [], changes.swap_cpu_seconds
    for service in measured:
        for figures in service.figures:
            settings = ReplicaSettings(max_queue=figures.max_queue)
            fleets = [
                one_machine(compute, http, service.replicas, settings, service.cores, seed)
                for seed in range(_REPETITIONS)
            ]
            predicted = [predict(figures, fleet, service.seconds, swap) for fleet in fleets]
            pairs += pairs_of(service.replicas, figures, predicted)
    return Validation(pairs=pairs)


def pairs_of(replicas: int, measured: Figures, predicted: list[Figures]) -> list[Pair]:
    """Pair the figures that the load does not determine with the median of their predictions."""
    names = ["answered", "p50", "p99"] + (["refused"] if measured.max_queue == _SHORT_QUEUE else [])
    # Below saturation, all requests are answered: their rate predicts nothing.
    names = [name for name in names if name != "answered" or measured.rate is None or "refused" in names]
    if measured.event == "one replica is killed":
        names.append("lost")
    pairs = []
    for name in names:
        values = sorted(getattr(each, name) for each in predicted)
        pairs.append(
            Pair(
                replicas=replicas,
                load=measured.load,
                figure=name,
                measured=getattr(measured, name),
                predicted=values[len(values) // 2],
                least=values[0],
                most=values[-1],
            )
        )
    return pairs
