"""Measure the costs of requests in the service: the threads, the load generator, nginx, and the waits between them.

For each replica, one client waits before each request, so that caches get cold during the pause. With many clients, a
thread handles several requests after each other, and some work, such as the call that wakes up the event loop, is
shared. The waits are measured with requests at random times and at a low rate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.fleet.constants import Deployment, Http, ThreadCost
from benchmarks.fleet.measurements.reference import Reference, Speed
from benchmarks.fleet.measurements.service_load import BODIES, Served, served
from loadtests.client import Connection
from loadtests.processes import busy_seconds, thread_times

_WARM_SECONDS = 2.0
_CLIENTS = 32
# Milliseconds for which a client waits before each request.
_PAUSES_MS = (0, 1, 3, 10, 30)
# Requests per second at which the waits for threads are measured.
_LOW_RATE = 50.0
# After the last request, the service gets so many seconds before its use of an idle machine is measured, in ticks of
# 10 ms. So this takes three times as long as a load.
_SETTLE_SECONDS, _IDLE_FACTOR = 2.0, 3


@dataclass(frozen=True)
class _Costs:
    """CPU times of a request during a load, in milliseconds.

    Attributes:
        every: Mean time from a request to the next one.
        client: Of the load generator.
        compute: Of the threads that compute the answers: the busiest thread of each replica.
        loop: Of all other threads of the replicas.
        nginx: Of nginx; 0 without nginx.
    """

    every: float
    client: float
    compute: float
    loop: float
    nginx: float


def _paused(service: Served, seconds: float, pause_ms: int, bodies: int = BODIES) -> _Costs:
    """Measure with one client for each replica, which waits before each request."""
    return _measured(service, seconds, lambda duration: _send(service, duration, pause_ms, bodies))


def _busy(service: Served, seconds: float, bodies: int = BODIES) -> _Costs:
    """Measure with many clients."""
    return _measured(service, seconds, lambda duration: len(service.closed_loop(_CLIENTS, duration, bodies)[0]))


def _measured(service: Served, seconds: float, run: Callable[[float], int]) -> _Costs:
    """The costs of a load that returns the number of its requests, after a shorter one to warm up."""
    run(min(_WARM_SECONDS, seconds))
    start, own, before = time.perf_counter(), time.process_time(), _thread_times(service)
    requests = run(seconds)
    after, last, end = _thread_times(service), time.process_time(), time.perf_counter()
    unit = 1e3 / requests
    spent = [_difference(old, new) for old, new in zip(before, after, strict=True)]
    replicas, nginx = spent[: len(service.replicas)], spent[len(service.replicas) :]
    compute = sum(max(threads) for threads in replicas)
    return _Costs(
        every=unit * (end - start),
        client=unit * (last - own),
        compute=unit * compute,
        loop=unit * (sum(map(sum, replicas)) - compute),
        nginx=unit * sum(map(sum, nginx)),
    )


def _deployment(service: Served, busy: _Costs, paused: Sequence[_Costs], seconds: float) -> Deployment:
    """The costs of a deployment, from the loads with many clients and with pauses."""
    loops = len(service.replicas)
    return Deployment(
        loop=_thread_cost(busy.loop, [(loops * each.every, each.loop) for each in paused]),
        client=_thread_cost(busy.client, [(each.every, each.client) for each in paused]),
        proxy=_thread_cost(busy.nginx, [(each.every, each.nginx) for each in paused]),
        wait_ms=_waits_ms(service, seconds),
        idle_cores=_idle_cores(seconds),
    )


def _thread_cost(busy_ms: float, paused: Sequence[tuple[float, float]]) -> ThreadCost:
    """The cost on a thread.

    Args:
        busy_ms: CPU time of a request with many clients.
        paused: For each load with pauses, the time between two requests of the thread, and the CPU time of a request.
            Both tasks of a request wake up the thread.
    """
    return ThreadCost(
        busy_ms=busy_ms,
        pause_ms=[(every - cost) / 2 for every, cost in paused],
        woken_ms=[cost for _, cost in paused],
    )


def _waits_ms(service: Served, seconds: float) -> list[float]:
    """Measure the percentiles of the waits at a low rate."""
    rests: list[float] = []

    def run(duration: float) -> int:
        rests[:] = service.rests_ms(_LOW_RATE, duration, seed=0)
        return len(rests)

    costs = _measured(service, seconds, run)
    waits = np.array(rests) - (costs.client + costs.loop + costs.nginx)
    percentiles: list[float] = np.percentile(np.maximum(waits, 0), range(101)).tolist()
    return percentiles


def _refused_ms(service: Served, seconds: float, answered_ms: float) -> float:
    """Measure the CPU time of the event loop for a refused request; that of an answered one is `answered_ms`."""
    (replica,) = service.replicas
    loop = replica.process  # the event loop runs on the main thread, whose number is that of the process
    before = thread_times(loop)[loop]
    exchanges, _ = service.closed_loop(_CLIENTS, seconds)
    spent_ms = 1e3 * (thread_times(loop)[loop] - before)
    answered = sum(exchange.status == 200 for exchange in exchanges)
    return max(0.0, (spent_ms - answered * answered_ms) / max(1, len(exchanges) - answered))


def _idle_cores(seconds: float) -> float:
    """Measure the share of a core that the machine uses while no requests are sent."""
    time.sleep(_SETTLE_SECONDS)
    start, busy = time.perf_counter(), busy_seconds()
    time.sleep(_IDLE_FACTOR * seconds)
    return (busy_seconds() - busy) / (time.perf_counter() - start)


def _thread_times(service: Served) -> list[dict[int, float]]:
    """The times of the threads of each replica, then those of nginx."""
    replicas = [replica.process for replica in service.replicas]
    return [thread_times(process) for process in [*replicas, *([service.nginx] if service.nginx else [])]]


def _send(service: Served, seconds: float, pause_ms: int, bodies: int) -> int:
    """Send requests for some seconds from one client for each replica, with a pause before each request.

    Returns:
        The number of requests.
    """
    until, sent = time.perf_counter() + seconds, list[int]()

    def send(first: int) -> None:
        connection, number = Connection(service.address), first
        while number == first or time.perf_counter() < until:
            time.sleep(pause_ms / 1e3)
            connection.post("/predict", service.bodies[number % min(bodies, len(service.bodies))])
            number += 1
        connection.close()
        sent.append(number - first)

    apart = BODIES // len(service.replicas)  # clients send different queries at the same time
    threads = [threading.Thread(target=send, args=(place * apart,)) for place in range(len(service.replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent)


def _difference(old: dict[int, float], new: dict[int, float]) -> list[float]:
    """CPU seconds of each thread between two moments."""
    return [seconds - old.get(thread, 0.0) for thread, seconds in new.items()]


def measure_http(store: Path, seconds: float) -> Http:
    """Measure a service of the current version of a store.

    Args:
        store: The store.
        seconds: Duration of each load.

    Raises:
        ServiceError, ReplicaError, MissingProgramError: If the store cannot be served.
    """
    with Reference(store) as reference:
        speed = Speed(reference)
        speed.measure()
        with served(store, 1, "--cache-mb", "0") as service:
            busy, paused = _busy(service, seconds), [_paused(service, seconds, pause) for pause in _PAUSES_MS]
            single = _deployment(service, busy, paused, seconds)
            request, answer = _sizes(service)
            speed.measure()
        with served(store, 1) as service:
            # The same query always: all answers come from the cache, and the event loop is the busiest thread.
            cached_busy = _busy(service, seconds, bodies=1)
            cached = [_paused(service, seconds, pause, bodies=1) for pause in _PAUSES_MS]
        with served(store, 1, "--cache-mb", "0", "--max-queue", "1") as service:
            refused_ms = _refused_ms(service, seconds, busy.loop)
        with served(store, 2, "--cache-mb", "0") as service:
            speed.measure()
            proxied = _deployment(
                service,
                _busy(service, seconds),
                [_paused(service, seconds, pause) for pause in _PAUSES_MS],
                seconds,
            )
            speed.measure()
    cached_loop = _thread_cost(
        cached_busy.compute + cached_busy.loop, [(each.every, each.compute + each.loop) for each in cached]
    )
    return Http(
        clients=_CLIENTS,
        reference_ms=speed.reference_ms,
        alone_ms={pause: each.compute for pause, each in zip(_PAUSES_MS, paused, strict=True) if pause},
        single=single,
        proxied=proxied,
        cached_loop=cached_loop,
        refused=cached_loop.times(refused_ms / cached_loop.busy_ms),
        request_bytes=request,
        answer_bytes=answer,
    )


def _sizes(service: Served) -> tuple[float, float]:
    """Mean bytes of a request and of its answer, with their headers."""
    connection = Connection(service.address)
    replies = [connection.post("/predict", body) for body in service.bodies]
    connection.close()
    head = len(
        f"POST /predict HTTP/1.1\r\nHost: {service.address.host}\r\nContent-Type: application/json\r\n"
        "Content-Length: 100\r\n\r\n"
    )
    lines = [
        len(b"HTTP/1.1 200 OK\r\n\r\n") + sum(len(f"{n}: {v}\r\n") for n, v in each.headers.items()) for each in replies
    ]
    answers = [line + len(each.body) for line, each in zip(lines, replies, strict=True)]
    return head + float(np.mean([len(body) for body in service.bodies])), float(np.mean(answers))
