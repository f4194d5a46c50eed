"""Predict the measured figures of the real service.

A prediction uses the recorded constants, the arrival times of the requests, and the speed of the machine. For the CPU
time of a query, this is the speed directly before and after the load. A virtual machine changes its speed within
seconds, and a slightly higher speed makes queues much shorter. So all other figures use the speed in each interval of
the load: the one at which the simulated batches take as much CPU time, for their size, as the real ones did.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import simpy
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.constants import Step
from benchmarks.fleet.intervals import Interval, Slowness, joined
from benchmarks.fleet.measurements.service import (
    CLIENTS,
    POLL_SECONDS,
    SHORT_QUEUE,
    WARM_SECONDS,
    Event,
    Figures,
    ServiceFigures,
    event_spans,
)
from benchmarks.fleet.records import Recorded
from benchmarks.fleet.simulation.fleet import Constants, Fleet, one_machine
from benchmarks.fleet.simulation.loads import distinct_queries
from benchmarks.fleet.simulation.replica import OK, Replica, ReplicaSettings
from loadtests.load import arrivals

# Number of simulations of each measurement. Their waits differ.
_SIMULATIONS = 3
# The speed in the intervals of a load is found by this number of simulations. Each corrects the speed by the ratio of
# the real to the simulated CPU time of a batch.
_CORRECTIONS = 5
# Number of batches of each replica that an interval needs for an exact speed.
_LEAST_BATCHES = 50
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
    environment, client = fleet.environment, fleet.client
    start = _warm_seconds(measured)
    spans, duration = [(start, math.inf)], seconds
    computed = _sample(fleet, [start, *_ends(measured)])
    if measured.rate is None:
        environment.process(client.closed_loop(CLIENTS, start + seconds, distinct_queries()))
    else:
        due = arrivals(measured.rate, seconds, measured.seed)
        environment.process(client.open_loop(due, distinct_queries()))
    if measured.event:
        spans = event_spans(measured.event, seconds)
        duration = sum(end - start for start, end in spans)
        for version, (start, _) in enumerate(spans, start=1):
            environment.process(_happen(measured.event, fleet, start, version, swap_steps))
    environment.run()
    outcome = client.outcome.due_in(*spans)
    return measured.model_copy(
        update={
            "compute_ms": 1e3 * fleet.computed.compute_seconds / max(1, client.outcome.count(OK)),
            "intervals": [after.since(before) for before, after in zip(computed, computed[1:], strict=False)],
            "answered": outcome.share(OK) * outcome.sent / duration,
            "p50": outcome.percentile_ms(50),
            "p99": outcome.percentile_ms(99),
            "refused": outcome.refused,
            "lost": outcome.lost,
        }
    )


def _warm_seconds(measured: Figures) -> float:
    """Time before the measured part of a simulated load."""
    return WARM_SECONDS if measured.rate is None else 0.0


def _ends(measured: Figures) -> list[float]:
    """The ends of the intervals in the simulated load."""
    return [_warm_seconds(measured) + interval.end for interval in measured.intervals]


def _sample(fleet: Fleet, moments: Sequence[float]) -> list[Interval]:
    """Returns the work until each of these moments, after the simulation has run."""
    computed: list[Interval] = []

    def sample() -> Generator[simpy.Event, Any, None]:
        for moment in moments:
            yield fleet.environment.timeout(moment - fleet.environment.now)
            computed.append(fleet.computed)

    fleet.environment.process(sample())
    return computed


def _happen(
    event: Event, fleet: Fleet, seconds: float, version: int, swap_steps: Sequence[Step]
) -> Generator[simpy.Event, Any, None]:
    """The steps of an event after some seconds; `version` is the number of the next version."""
    yield fleet.environment.timeout(seconds)
    if event == "swap":
        for replica in fleet.balancer.replicas:
            noticed = fleet.random.uniform(0, POLL_SECONDS)
            fleet.environment.process(_open_after(noticed, fleet, replica, version, swap_steps))
    else:
        fleet.balancer.replicas[0].stop(refuses_connections=True)


def _open_after(
    seconds: float, fleet: Fleet, replica: Replica, version: int, steps: Sequence[Step]
) -> Generator[simpy.Event, Any, None]:
    yield fleet.environment.timeout(seconds)
    yield from replica.open_version(version, steps)


def validate(measured: list[ServiceFigures], constants: Constants) -> Validation:
    """Predict measured figures, at the speed that the machine had during each load."""
    pairs = []
    for service in measured:
        loads: dict[str, list[Figures]] = {}
        for figures in service.figures:
            loads.setdefault(figures.load, []).append(figures)
        for all_repeated in loads.values():
            repeated = [_with_longer_intervals(figures, service.replicas) for figures in _undisturbed(all_repeated)]
            simulations = [_Simulation(service, figures, constants) for figures in repeated]
            pairs.append(_pair(service.replicas, "compute_ms", repeated, [each.steady for each in simulations]))
            predicted = [figures for each in simulations for figures in each.predict_all()]
            pairs += [_pair(service.replicas, name, repeated, predicted) for name in _names(repeated[0])]
    return Validation(pairs=pairs)


def _undisturbed(measured: list[Figures]) -> list[Figures]:
    """The measurements that count; the least disturbed one if none does."""
    return [each for each in measured if each.stolen <= MOST_STOLEN] or [min(measured, key=lambda each: each.stolen)]


def _with_longer_intervals(measured: Figures, replicas: int) -> Figures:
    """Join those intervals of the figures that have few batches."""
    return measured.model_copy(update={"intervals": joined(measured.intervals, _LEAST_BATCHES * replicas)})


@dataclass(frozen=True)
class _Simulation:
    """The simulation of a measured load."""

    service: ServiceFigures
    measured: Figures
    constants: Constants

    @cached_property
    def steady(self) -> Figures:
        """The simulation at the speed directly before and after the load."""
        return self.predict([1.0])

    def predict_all(self) -> list[Figures]:
        """Simulate the load several times, at the speed that the machine had in each interval."""
        slowness = self._slowness()
        return [self.predict(slowness, seed) for seed in range(_SIMULATIONS)]

    def predict(self, slowness: Sequence[float], seed: int = 0) -> Figures:
        """Simulate the load.

        Args:
            slowness: Factor by which a task takes longer in each interval than directly before and after the load.
            seed: Seed of the waits.
        """
        constants = self.constants.at(self.measured.reference_ms)
        settings = ReplicaSettings(max_queue=self.measured.max_queue)
        speed = Slowness(_ends(self.measured), slowness)
        fleet = one_machine(constants, self.service.replicas, settings, self.service.cores, seed, speed.at)
        return predict(self.measured, fleet, self.service.seconds, constants.swap_steps)

    def _slowness(self) -> list[float]:
        """The factor in each interval at which the simulated batches take the measured CPU time, for their size."""
        compute = self.constants.compute
        real = [interval.relative_cpu_time(compute) for interval in self.measured.intervals]
        factors = [1.0] * len(real)
        for correction in range(_CORRECTIONS):
            figures = self.predict(factors) if correction else self.steady
            simulated = [interval.relative_cpu_time(compute) for interval in figures.intervals]
            factors = [
                factor * (wanted / found if wanted and found else 1.0)
                for factor, wanted, found in zip(factors, real, simulated, strict=True)
            ]
        return factors


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
