"""Measure the real service: its rate at saturation, and its latency at several loads, under overload and during events.

The rates of the open loops are shares of the measured rate at saturation. During two of the loads, the service swaps to
another version, or a replica is killed; their figures are those of the requests that were due in the four seconds
afterwards.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.constants import Recorded
from benchmarks.fleet.measurements.reference import Reference, Speed
from benchmarks.fleet.measurements.service_load import Served, served
from benchmarks.fleet.simulation.replica import ReplicaSettings
from loadtests.load import Exchange, arrivals, latency_percentiles
from loadtests.swaps import add_changed_version, copied_versions
from service.threads import usable_cores

LOADS = (0.3, 0.6, 0.8)
# Load and queue of the overload. The running requests must be fewer than the connections of the load generator.
_OVERLOAD, SHORT_QUEUE = 1.3, 8
CLIENTS, WARM_SECONDS = 64, 2.0
# The load during an event. The event happens after this share of the load, and its figures are of so many seconds.
_EVENT_LOAD, EVENT_SHARE, AFTER_SECONDS = 0.5, 0.3, 4.0
# The service looks this often for an activated version.
_POLL_SECONDS = 0.1
# What happens during a load: nothing, a replica is killed, or the service swaps to a version without equal files.
Event = Literal["", "one replica is killed", "swap"]
Result = TypeVar("Result")


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
        reference_ms: Mean time of the reference (`measurements.reference`) before and after the load.
        slowdown: Its mean time while another core is busy, divided by `reference_ms`.
    """

    model_config = ConfigDict(frozen=True)

    load: str
    reference_ms: float
    slowdown: float
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
    """Measured figures of the real service: each load once, then each load again, and so on.

    Attributes:
        replicas: Number of replicas.
        cores: Number of cores of the machine.
        seconds: Duration of each load.
        figures: The figures of all measurements.
    """

    replicas: int
    cores: int
    seconds: float
    figures: list[Figures]


def measure_service(store: Path, replicas: int, seconds: float, repetitions: int) -> ServiceFigures:
    """Measure the service at saturation, at the loads, with a short queue under overload, and during events.

    Args:
        store: The store.
        replicas: 1, or 2 for two replicas behind nginx.
        seconds: Duration of each load.
        repetitions: Number of measurements of each load. All loads are measured once before any is measured again.

    Raises:
        ServiceError, ReplicaError, MissingProgramError: If the store cannot be served.
    """
    with Reference(store) as reference:
        figures = [each for _ in range(repetitions) for each in _measure_all(store, reference, replicas, seconds)]
    return ServiceFigures(replicas=replicas, cores=usable_cores(), seconds=seconds, figures=figures)


def _measure_all(store: Path, reference: Reference, replicas: int, seconds: float) -> list[Figures]:
    """Measure each load once."""
    most = ReplicaSettings().max_queue
    with served(store, replicas, "--cache-mb", "0") as service:
        service.closed_loop(CLIENTS, min(WARM_SECONDS, seconds))
        (exchanges, duration), speed = _timed(reference, lambda: service.closed_loop(CLIENTS, seconds))
        saturated = _figures("saturated", speed, None, 0, most, exchanges, duration)
        loads = _Loads(service, reference, seconds)
        figures = [saturated]
        for number, load in enumerate(LOADS):
            figures.append(loads.steady(f"{load:.0%}", load * saturated.answered, most, number))
    with served(store, replicas, "--cache-mb", "0", "--max-queue", str(SHORT_QUEUE)) as service:
        service.closed_loop(1, min(WARM_SECONDS, seconds))
        rate = _OVERLOAD * saturated.answered
        loads = _Loads(service, reference, seconds)
        figures.append(loads.steady(f"{_OVERLOAD:.0%}", rate, SHORT_QUEUE, len(LOADS)))
    rate = _EVENT_LOAD * saturated.answered
    with copied_versions(store, 1) as (copied, versions):
        changed = add_changed_version(copied, versions[0], 1)
        with served(copied.root, replicas, "--cache-mb", "0", "--poll-seconds", f"{_POLL_SECONDS}") as service:
            service.closed_loop(CLIENTS, min(WARM_SECONDS, seconds))
            loads = _Loads(service, reference, seconds)
            figures.append(loads.during("swap", lambda: copied.activate(changed), rate))
            if replicas > 1:
                killed = service.replicas[0]
                figures.append(loads.during("one replica is killed", lambda: os.kill(killed, signal.SIGKILL), rate))
    return figures


@dataclass(frozen=True)
class _Loads:
    """Open loops with random arrivals, and the speed of the machine before and after each of them."""

    service: Served
    reference: Reference
    seconds: float

    def steady(self, load: str, rate: float, max_queue: int, seed: int) -> Figures:
        exchanges, speed = _timed(self.reference, lambda: self.service.open_loop(rate, self.seconds, seed))
        return _figures(load, speed, rate, seed, max_queue, exchanges, self.seconds)

    def during(self, event: Event, happen: Callable[[], object], rate: float) -> Figures:
        """Run an open loop during an event. The figures are those of the seconds afterwards."""
        seed, max_queue = len(LOADS) + 1, ReplicaSettings().max_queue
        due = np.array(arrivals(rate, self.seconds, seed))

        def run() -> list[Exchange]:
            timer = threading.Timer(EVENT_SHARE * self.seconds, happen)
            timer.start()
            exchanges = self.service.open_loop(rate, self.seconds, seed)
            timer.join()
            return exchanges

        exchanges, speed = _timed(self.reference, run)
        after = [each for each in exchanges if each.number >= 0 and _is_after(float(due[each.number]), self.seconds)]
        load = f"{_EVENT_LOAD:.0%}, {event}"
        figures = _figures(load, speed, rate, seed, max_queue, after, AFTER_SECONDS)
        return figures.model_copy(update={"event": event})


def _timed(reference: Reference, run: Callable[[], Result]) -> tuple[Result, Speed]:
    """Run a load; return its result, and the speed of the machine directly before and after it."""
    speed = Speed(reference)
    speed.measure()
    result = run()
    speed.measure()
    return result, speed


def _is_after(due: float, seconds: float) -> bool:
    """Whether a request was due in the seconds after the event."""
    return 0 <= due - EVENT_SHARE * seconds < AFTER_SECONDS


def _figures(
    load: str,
    speed: Speed,
    rate: float | None,
    seed: int,
    max_queue: int,
    exchanges: list[Exchange],
    seconds: float,
) -> Figures:
    statuses = np.array([exchange.status for exchange in exchanges])
    p50, p99 = latency_percentiles(exchanges, 50, 99)
    return Figures(
        load=load,
        reference_ms=speed.reference_ms,
        slowdown=speed.slowdown,
        rate=rate,
        seed=seed,
        max_queue=max_queue,
        answered=float((statuses == 200).sum() / seconds),
        p50=p50,
        p99=p99,
        refused=float((statuses == 503).mean()),
        lost=float(((statuses != 200) & (statuses != 503)).mean()),
    )
