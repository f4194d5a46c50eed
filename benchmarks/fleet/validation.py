"""Measure the real service, and predict the same figures.

A prediction uses the recorded constants, and the arrival times of the requests. The rates of the open loops are shares
of the measured rate at saturation.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.constants import Compute, Http, Recorded
from benchmarks.fleet.measurements.service_load import Served, served
from benchmarks.fleet.simulation.fleet import Fleet, one_machine
from benchmarks.fleet.simulation.loads import distinct_queries
from benchmarks.fleet.simulation.replica import OK, ReplicaSettings
from loadtests.load import Exchange, arrivals, latency_percentiles
from service.threads import usable_cores

LOADS = (0.3, 0.6, 0.8)
# Load and queue of the overload. The running requests must be fewer than the connections of the load generator.
_OVERLOAD, _SHORT_QUEUE = 1.3, 8
_CLIENTS, _WARM_SECONDS = 64, 2.0
# A load is simulated this often, with other random service times.
_REPETITIONS = 9


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
    """Measure the service at saturation, at the loads, and with a short queue under overload.

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
    return ServiceFigures(replicas=replicas, cores=usable_cores(), seconds=seconds, figures=figures)


def _open_loop(service: Served, load: str, rate: float, max_queue: int, seconds: float, seed: int) -> Figures:
    return _figures(load, rate, seed, max_queue, service.open_loop(rate, seconds, seed), seconds)


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
    )


def predict(measured: Figures, fleet: Fleet, seconds: float) -> Figures:
    """Simulate a measured load."""
    environment, client, start = fleet.environment, fleet.client, 0.0
    if measured.rate is None:
        start = _WARM_SECONDS
        environment.process(client.closed_loop(_CLIENTS, start + seconds, distinct_queries()))
    else:
        due = arrivals(measured.rate, seconds, measured.seed)
        environment.process(client.open_loop(due, distinct_queries()))
    environment.run()
    outcome = client.outcome.between(start, math.inf)
    return measured.model_copy(
        update={
            "answered": outcome.share(OK) * outcome.sent / seconds,
            "p50": outcome.percentile_ms(50),
            "p99": outcome.percentile_ms(99),
            "refused": outcome.refused,
        }
    )


def validate(measured: list[ServiceFigures], compute: Compute, http: Http) -> Validation:
    """Predict measured figures."""
    pairs = []
    for service in measured:
        for figures in service.figures:
            settings = ReplicaSettings(max_queue=figures.max_queue)
            fleets = [
                one_machine(compute, http, service.replicas, settings, service.cores, seed)
                for seed in range(_REPETITIONS)
            ]
            pairs += pairs_of(service.replicas, figures, [predict(figures, fleet, service.seconds) for fleet in fleets])
    return Validation(pairs=pairs)


def pairs_of(replicas: int, measured: Figures, predicted: list[Figures]) -> list[Pair]:
    """Pair the figures that the load does not determine with the median of their predictions."""
    names = ["answered", "p50", "p99"] + (["refused"] if measured.max_queue == _SHORT_QUEUE else [])
    # Below saturation, all requests are answered: their rate predicts nothing.
    names = [name for name in names if name != "answered" or measured.rate is None or "refused" in names]
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
