"""Predict the measured figures of the real service.

A prediction uses the recorded constants, the arrival times of the requests, and the speed of the machine during each
load.
"""

from __future__ import annotations

import math
from collections.abc import Generator
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

# A load is simulated this often, with other random service times.
_REPETITIONS = 9


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


def predict(measured: Figures, fleet: Fleet, seconds: float, swap_cpu_seconds: float) -> Figures:
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
    """Predict measured figures, at the speed that the machine had during each load."""
    pairs, swap = [], changes.swap_cpu_seconds
    for service in measured:
        for figures in service.figures:
            settings = ReplicaSettings(max_queue=figures.max_queue)
            compute_then, http_then = compute.at(figures.reference_ms), http.at(figures.reference_ms)
            fleets = [
                one_machine(compute_then, http_then, service.replicas, settings, service.cores, seed)
                for seed in range(_REPETITIONS)
            ]
            predicted = [predict(figures, fleet, service.seconds, swap) for fleet in fleets]
            pairs += pairs_of(service.replicas, figures, predicted)
    return Validation(pairs=pairs)


def pairs_of(replicas: int, measured: Figures, predicted: list[Figures]) -> list[Pair]:
    """Pair the figures that the load does not determine with the median of their predictions."""
    names = ["answered", "p50", "p99"] + (["refused"] if measured.max_queue == SHORT_QUEUE else [])
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
