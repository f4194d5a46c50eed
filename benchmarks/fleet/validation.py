"""Predict the measured figures of the real service.

A prediction uses the recorded constants, the arrival times of the requests, and the speed of the machine. For the CPU
time of a query, this is the speed directly before and after the load. For all other figures, it is the speed during the
load: the one at which the simulated batches take as much CPU time, for their size, as the real ones did. A virtual
machine changes its speed within seconds, and a slightly higher speed makes queues much shorter. So the simulated speed
changes too, as that of the idle machine did from a random moment on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import simpy
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.constants import Changes, Recorded, Step
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
from benchmarks.fleet.simulation.fleet import Constants, Fleet, one_machine
from benchmarks.fleet.simulation.loads import distinct_queries
from benchmarks.fleet.simulation.replica import OK, ReplicaSettings
from loadtests.load import arrivals

# Number of simulations of each measurement. Their waits and changes of speed differ.
_SIMULATIONS = 3
# The speed during a load is found by repeated simulation: at most `_MOST_STEPS` times, or until the relative error of
# the CPU time of batches is less than `_NEAR`.
_MOST_STEPS, _NEAR = 5, 0.01
# A measurement counts if the hypervisor gave at most this share of the CPU time to other virtual machines meanwhile.
MOST_STOLEN = 0.01


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
        """The relative error of the prediction; infinite if only the measured figure is 0."""
        if self.measured.median:
            return self.predicted.median / self.measured.median - 1
        return math.inf if self.predicted.median else 0.0


class Validation(Recorded):
    """Measured figures with their predictions."""

    pairs: list[Pair]


def predict(measured: Figures, fleet: Fleet, seconds: float, swap_steps: Sequence[Step]) -> Figures:
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
            "compute_ms": 1e3 * fleet.compute_seconds / max(1, client.outcome.count(OK)),
            "batch": fleet.batch,
            "answered": outcome.share(OK) * outcome.sent / duration,
            "p50": outcome.percentile_ms(50),
            "p99": outcome.percentile_ms(99),
            "refused": outcome.refused,
            "lost": outcome.lost,
        }
    )


def _happen(
    event: Event, fleet: Fleet, seconds: float, swap_steps: Sequence[Step]
) -> Generator[simpy.Event, Any, None]:
    """The steps of an event after some seconds."""
    yield fleet.environment.timeout(seconds)
    if event == "swap":
        for replica in fleet.balancer.replicas:
            fleet.environment.process(replica.open_version(1, swap_steps))
    else:
        fleet.balancer.replicas[0].stop(refuses_connections=True)


def validate(measured: list[ServiceFigures], constants: Constants, changes: Changes) -> Validation:
    """Predict measured figures, at the speed that the machine had during each load."""
    pairs = []
    for service in measured:
        loads: dict[str, list[Figures]] = {}
        for figures in service.figures:
            loads.setdefault(figures.load, []).append(figures)
        for all_repeated in loads.values():
            repeated = _undisturbed(all_repeated)
            steady = [_Simulation(service, figures, replace(constants, drift=None), changes) for figures in repeated]
            before_and_after = [each.predict(each.measured.reference_ms, 0) for each in steady]
            pairs.append(_pair(service.replicas, "compute_ms", repeated, before_and_after))
            simulations = [_Simulation(service, figures, constants, changes) for figures in repeated]
            predicted = [each.predict(each.speed(seed), seed) for each in simulations for seed in range(_SIMULATIONS)]
            pairs += [_pair(service.replicas, name, repeated, predicted) for name in _names(repeated[0])]
    return Validation(pairs=pairs)


def _undisturbed(measured: list[Figures]) -> list[Figures]:
    """The measurements that count; the least disturbed one if none does."""
    return [each for each in measured if each.stolen <= MOST_STOLEN] or [min(measured, key=lambda each: each.stolen)]


@dataclass(frozen=True)
class _Simulation:
    """The simulation of a measured load."""

    service: ServiceFigures
    measured: Figures
    constants: Constants
    changes: Changes

    def predict(self, reference_ms: float, seed: int) -> Figures:
        """Simulate the load. The time of the reference gives the speed of the machine."""
        constants, settings = self.constants.at(reference_ms), ReplicaSettings(max_queue=self.measured.max_queue)
        fleet = one_machine(constants, self.service.replicas, settings, self.service.cores, seed)
        return predict(self.measured, fleet, self.service.seconds, self.changes.scaled_steps)

    def speed(self, seed: int) -> float:
        """The mean speed, as time of the reference, at which batches take the measured CPU time."""
        reference_ms, slowness = self.measured.reference_ms, self._slowness(self.measured)
        for _ in range(_MOST_STEPS):
            ratio = slowness / self._slowness(self.predict(reference_ms, seed))
            reference_ms *= ratio
            if abs(ratio - 1) < _NEAR:
                break
        return reference_ms

    def _slowness(self, figures: Figures) -> float:
        """The CPU time of a query, relative to the constant for a query in a batch of the same size.

        A long queue makes the batches larger, so a slow machine can take as much CPU time for a query as a fast one.
        """
        size = max(1.0, figures.batch)
        return figures.compute_ms * size / self.constants.compute.size_ms(size)


def _names(measured: Figures) -> list[str]:
    """The figures that the load does not determine."""
    names = ["answered", "p50", "p99"] + (["refused"] if measured.max_queue == SHORT_QUEUE else [])
    # Below saturation, all requests are answered: their rate predicts nothing.
    names = [name for name in names if name != "answered" or measured.rate is None or "refused" in names]
    return names + (["lost"] if measured.event == "one replica is killed" else [])


def _pair(replicas: int, figure: str, measured: list[Figures], predicted: list[Figures]) -> Pair:
    return Pair(
        replicas=replicas,
        load=measured[0].load,
        figure=figure,
        measured=Spread.of([getattr(each, figure) for each in measured]),
        predicted=Spread.of([getattr(each, figure) for each in predicted]),
    )
