"""Measure the real service: its rate at saturation, and its latency at several loads, under overload and during events.

The rates of the open loops are shares of the measured rate at saturation. During two of the loads, the service swaps to
other versions, or a replica is killed; their figures are those of the requests that were due in a fifth of
the load after each of these events.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from benchmarks.fleet.intervals import Interval
from benchmarks.fleet.measurements.reference import Reference
from benchmarks.fleet.measurements.sampler import Sampler
from benchmarks.fleet.measurements.service_load import Served, served
from benchmarks.fleet.records import Recorded
from benchmarks.fleet.simulation.replica import ReplicaSettings
from loadtests.load import Exchange, arrivals, latency_percentiles
from loadtests.processes import steal_seconds
from loadtests.swaps import add_changed_version, copied_versions
from recollect.service.threads import usable_cores

LOADS = (0.3, 0.6, 0.8)
# Load and queue of the overload. The running requests must be fewer than the connections of the load generator.
_OVERLOAD, SHORT_QUEUE = 1.3, 8
CLIENTS, WARM_SECONDS = 64, 2.0
# The load during events, and the share of it after each event that counts.
_EVENT_LOAD, _EVENT_SHARE = 0.5, 0.2
# The service looks this often for an activated version.
POLL_SECONDS = 0.1
# What happens during a load: nothing, a replica is killed, or the service swaps to other versions. No two versions have
# equal files.
Event = Literal["", "one replica is killed", "swap"]
# It happens after these shares of the load. A swap is short, so several of them make its figures steadier.
_EVENT_SHARES: dict[Event, tuple[float, ...]] = {"": (), "one replica is killed": (0.3,), "swap": (0.1, 0.4, 0.7)}
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
        compute_ms: CPU time of the computing threads for each answered request, during the load.
        intervals: The work of the computing threads in the intervals of the load.
        stolen: Share of the machine's CPU time that the hypervisor gave to other virtual machines during the load.
    """

    model_config = ConfigDict(frozen=True)

    load: str
    reference_ms: float
    compute_ms: float
    intervals: list[Interval]
    stolen: float
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


def event_spans(event: Event, seconds: float) -> list[tuple[float, float]]:
    """The parts of a load that count: the time after each event, in seconds since the start of the load.

    Args:
        event: Kind of the events.
        seconds: Duration of the load.
    """
    return [(share * seconds, (share + _EVENT_SHARE) * seconds) for share in _EVENT_SHARES[event]]


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
        figures = [
            each
            for repetition in range(repetitions)
            for each in _measure_all(store, reference, replicas, seconds, first_seed=10 * repetition)
        ]
    return ServiceFigures(replicas=replicas, cores=usable_cores(), seconds=seconds, figures=figures)


def _measure_all(store: Path, reference: Reference, replicas: int, seconds: float, first_seed: int) -> list[Figures]:
    """Measure each load once."""
    most = ReplicaSettings().max_queue
    with served(store, replicas, "--cache-mb", "0") as service:
        service.closed_loop(CLIENTS, min(WARM_SECONDS, seconds))
        loads = _Loads(service, reference, seconds, most)
        saturated = loads.saturated()
        figures = [saturated]
        for seed, load in enumerate(LOADS, start=first_seed):
            figures.append(loads.steady(f"{load:.0%}", load * saturated.answered, seed))
    with served(store, replicas, "--cache-mb", "0", "--max-queue", str(SHORT_QUEUE)) as service:
        service.closed_loop(1, min(WARM_SECONDS, seconds))
        loads = _Loads(service, reference, seconds, SHORT_QUEUE)
        figures.append(loads.steady(f"{_OVERLOAD:.0%}", _OVERLOAD * saturated.answered, first_seed + len(LOADS)))
    rate, seed = _EVENT_LOAD * saturated.answered, first_seed + len(LOADS) + 1
    with copied_versions(store, 1) as (copied, versions):
        changed = [add_changed_version(copied, versions[0], 1 + number) for number in range(len(_EVENT_SHARES["swap"]))]
        with served(copied.root, replicas, "--cache-mb", "0", "--poll-seconds", f"{POLL_SECONDS}") as service:
            service.closed_loop(CLIENTS, min(WARM_SECONDS, seconds))
            loads = _Loads(service, reference, seconds, most)
            figures.append(loads.during("swap", [partial(copied.activate, each) for each in changed], rate, seed))
            if replicas > 1:
                figures.append(loads.during("one replica is killed", [service.replicas[0].kill], rate, seed))
    return figures


@dataclass(frozen=True)
class _Conditions:
    """The conditions of a load; for the attributes, see `Figures`."""

    reference_ms: float
    intervals: list[Interval]
    stolen: float


@dataclass(frozen=True)
class _Loads:
    """Loads of a service with this `--max-queue`, and the conditions of each of them."""

    service: Served
    reference: Reference
    seconds: float
    max_queue: int

    def saturated(self) -> Figures:
        (exchanges, duration), conditions = self._timed(lambda _: self.service.closed_loop(CLIENTS, self.seconds))
        return self._figures("saturated", conditions, None, 0, exchanges, exchanges, duration)

    def steady(self, load: str, rate: float, seed: int) -> Figures:
        """Run an open loop with random arrivals."""
        exchanges, conditions = self._timed(lambda _: self.service.open_loop(rate, self.seconds, seed))
        return self._figures(load, conditions, rate, seed, exchanges, exchanges, self.seconds)

    def during(self, event: Event, actions: Sequence[Callable[[], object]], rate: float, seed: int) -> Figures:
        """Run an open loop during events.

        Latencies, rates and shares are those of the seconds after the events; the CPU time is that of the whole load.
        """
        spans = event_spans(event, self.seconds)

        def run(sampler: Sampler) -> list[Exchange]:
            start = time.perf_counter()

            def happen_all() -> None:
                for (due, _), action in zip(spans, actions, strict=True):
                    time.sleep(max(0.0, start + due - time.perf_counter()))
                    if event == "one replica is killed":
                        sampler.sample()
                    action()

            with ThreadPoolExecutor(1) as pool:
                happened = pool.submit(happen_all)
                exchanges = self.service.open_loop(rate, self.seconds, seed)
                happened.result()  # raises its error
            return exchanges

        exchanges, conditions = self._timed(run)
        due = arrivals(rate, self.seconds, seed)
        after = [
            each
            for each in exchanges
            if each.number >= 0 and any(start <= due[each.number] < end for start, end in spans)
        ]
        seconds = sum(end - start for start, end in spans)
        figures = self._figures(f"{_EVENT_LOAD:.0%}, {event}", conditions, rate, seed, exchanges, after, seconds)
        return figures.model_copy(update={"event": event})

    def _timed(self, run: Callable[[Sampler], Result]) -> tuple[Result, _Conditions]:
        """Run a load; return its result and its conditions."""
        reference_ms = self.reference.time_ms()
        start, stolen = time.perf_counter(), steal_seconds()
        with Sampler(self.service.replicas) as sampler:
            result = run(sampler)
        share = (steal_seconds() - stolen) / (time.perf_counter() - start) / (os.cpu_count() or 1)
        return result, _Conditions(
            reference_ms=(reference_ms + self.reference.time_ms()) / 2,
            intervals=sampler.intervals(),
            stolen=share,
        )

    def _figures(
        self,
        load: str,
        conditions: _Conditions,
        rate: float | None,
        seed: int,
        exchanges: list[Exchange],
        counted: list[Exchange],
        seconds: float,
    ) -> Figures:
        """The figures of the counted exchanges, which were due in so many seconds."""
        statuses = np.array([exchange.status for exchange in counted])
        answered = sum(exchange.status == 200 for exchange in exchanges)
        p50, p99 = latency_percentiles(counted, 50, 99)
        return Figures(
            load=load,
            reference_ms=conditions.reference_ms,
            compute_ms=1e3 * sum(each.compute_seconds for each in conditions.intervals) / max(1, answered),
            intervals=conditions.intervals,
            stolen=conditions.stolen,
            rate=rate,
            seed=seed,
            max_queue=self.max_queue,
            answered=float((statuses == 200).sum() / seconds),
            p50=p50,
            p99=p99,
            refused=float((statuses == 503).mean()),
            lost=float(((statuses != 200) & (statuses != 503)).mean()),
        )
