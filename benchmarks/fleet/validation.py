"""Predict the measured figures of the real service.

A prediction uses the recorded constants, the arrival times of the requests, and the speed of the machine during each
load.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from typing import Any

import simpy
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.constants import Changes, Compute, Http, Recorded
from benchmarks.fleet.measurements.service import (
    AFTER_SECONDS,
    CLIENTS,
    EVENT_SHARE,
    SHORT_QUEUE,
    WARM_SECONDS,
    Event,
    Figures,
    ServiceFigures,
)
from benchmarks.fleet.simulation.fleet import Fleet, one_machine
from benchmarks.fleet.simulation.loads import distinct_queries
from benchmarks.fleet.simulation.replica import OK, ReplicaSettings
from loadtests.load import arrivals

# Number of simulations of each measurement. Their random service times differ.
_SIMULATIONS = 3


class Spread(BaseModel):
    """The median, the least and the most of repeated figures."""

    model_config = ConfigDict(frozen=True)

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median=statistics.median(values), least=min(values), most=max(values))


class Pair(BaseModel):
    """A figure of repeated measurements, and of their simulations."""

    model_config = ConfigDict(frozen=True)

    replicas: int
    load: str
    figure: str
    measured: Spread
    predicted: Spread

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted.median / self.measured.median - 1 if self.measured.median else 0.0


class Validation(Recorded):
    """Measured figures with their predictions."""

    pairs: list[Pair]


def predict(measured: Figures, fleet: Fleet, seconds: float, swap_steps: Sequence[float]) -> Figures:
    """Simulate a measured load."""
    environment, client, start, end = fleet.environment, fleet.client, 0.0, math.inf
    duration = AFTER_SECONDS if measured.event else seconds
    if measured.rate is None:
        start = WARM_SECONDS
        environment.process(client.closed_loop(CLIENTS, start + seconds, distinct_queries()))
    else:
        due = arrivals(measured.rate, seconds, measured.seed)
        environment.process(client.open_loop(due, distinct_queries()))
    if measured.event:
        start = EVENT_SHARE * seconds
        end = start + duration
        environment.process(_happen(measured.event, fleet, start, swap_steps))
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


def _happen(
    event: Event, fleet: Fleet, seconds: float, swap_steps: Sequence[float]
) -> Generator[simpy.Event, Any, None]:
    """The steps of an event after some seconds."""
    yield fleet.environment.timeout(seconds)
    if event == "swap":
        for replica in fleet.balancer.replicas:
            fleet.environment.process(replica.open_version(1, swap_steps))
    else:
        fleet.balancer.replicas[0].stop(refuses_connections=True)


def validate(measured: list[ServiceFigures], compute: Compute, http: Http, changes: Changes) -> Validation:
    """Predict measured figures, at the speed that the machine had during each load."""
    pairs = []
    for service in measured:
        loads: dict[str, list[Figures]] = {}
        for figures in service.figures:
            loads.setdefault(figures.load, []).append(figures)
        for repeated in loads.values():
            predicted = [
                predict(figures, _fleet(service, figures, compute, http, seed), service.seconds, changes.swap_steps)
                for figures in repeated
                for seed in range(_SIMULATIONS)
            ]
            pairs += _pairs(service.replicas, repeated, predicted)
    return Validation(pairs=pairs)


def _fleet(service: ServiceFigures, figures: Figures, compute: Compute, http: Http, seed: int) -> Fleet:
    """The simulated machine of a measurement."""
    compute, http = compute.at(figures.reference_ms, figures.slowdown), http.at(figures.reference_ms)
    settings = ReplicaSettings(max_queue=figures.max_queue)
    return one_machine(compute, http, service.replicas, settings, service.cores, seed)


def _pairs(replicas: int, measured: list[Figures], predicted: list[Figures]) -> list[Pair]:
    """Pair the figures that the load does not determine with their predictions."""
    first = measured[0]
    names = ["answered", "p50", "p99"] + (["refused"] if first.max_queue == SHORT_QUEUE else [])
    # Below saturation, all requests are answered: their rate predicts nothing.
    names = [name for name in names if name != "answered" or first.rate is None or "refused" in names]
    if first.event == "one replica is killed":
        names.append("lost")
    return [
        Pair(
            replicas=replicas,
            load=first.load,
            figure=name,
            measured=Spread.of([getattr(each, name) for each in measured]),
            predicted=Spread.of([getattr(each, name) for each in predicted]),
        )
        for name in names
    ]
