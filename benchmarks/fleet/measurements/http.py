"""Measure the costs of requests in the service: the threads, the load generator, nginx, and the waits between them.

One client waits before each request, so all threads are idle, and their caches are cold. With many clients, a thread
handles several requests after each other, and some work, such as the call that wakes up the event loop, is shared.
The waits are measured with requests at random times and at a low rate.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.fleet.constants import Http, ThreadCost
from benchmarks.fleet.measurements.reference import Reference, Speed
from benchmarks.fleet.measurements.service_load import BODIES, Served, served
from loadtests.client import Connection
from loadtests.processes import thread_times

_WARM_SECONDS = 2.0
_CLIENTS = 32
# Milliseconds for which one client waits before each request; the other pauses are only for the computing thread.
_PAUSE_MS, _OTHER_PAUSES_MS = 10, (1, 3, 30)
# Requests per second at which the waits for threads are measured.
_LOW_RATE = 50.0


@dataclass(frozen=True)
class _Costs:
    """CPU times of a request, in milliseconds.

    Attributes:
        client: Of the load generator.
        compute: Of the threads that compute the answers: the busiest thread of each replica.
        loop: Of all other threads of the replicas.
        nginx: Of nginx; 0 without nginx.
    """

    client: float
    compute: float
    loop: float
    nginx: float


def _idle(service: Served, seconds: float, bodies: int = BODIES, pause_ms: int = _PAUSE_MS) -> _Costs:
    """Measure with one client, which waits before each request."""
    connection = Connection(service.address)
    _send(connection, service.bodies[:bodies], min(_WARM_SECONDS, seconds), pause_ms)
    own, before = time.thread_time(), _thread_times(service)
    count = _send(connection, service.bodies[:bodies], seconds, pause_ms)
    after, last = _thread_times(service), time.thread_time()
    connection.close()
    spent = [_difference(old, new) for old, new in zip(before, after, strict=True)]
    return _costs(service, last - own, spent, count)


def _busy(service: Served, seconds: float, bodies: int = BODIES) -> _Costs:
    """Measure with many clients."""
    service.closed_loop(_CLIENTS, min(_WARM_SECONDS, seconds), bodies)
    own, before = time.process_time(), _thread_times(service)
    exchanges, _ = service.closed_loop(_CLIENTS, seconds, bodies)
    after, last = _thread_times(service), time.process_time()
    spent = [_difference(old, new) for old, new in zip(before, after, strict=True)]
    return _costs(service, last - own, spent, len(exchanges))


def _waits_ms(service: Served, costs: _Costs, seconds: float) -> list[float]:
    """Measure the percentiles of the waits at a low rate; `costs` are those with one client."""
    cpu = costs.client + costs.loop + costs.nginx
    waits = np.array(service.rests_ms(_LOW_RATE, seconds, seed=0)) - cpu
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


def _thread_times(service: Served) -> list[dict[int, float]]:
    """The times of the threads of each replica, then those of nginx."""
    replicas = [replica.process for replica in service.replicas]
    return [thread_times(process) for process in [*replicas, *([service.nginx] if service.nginx else [])]]


def _costs(service: Served, client: float, spent: list[list[float]], requests: int) -> _Costs:
    """The costs of a request from the seconds of the load generator and of all threads."""
    unit = 1e3 / requests
    replicas, nginx = spent[: len(service.replicas)], spent[len(service.replicas) :]
    compute = sum(max(threads) for threads in replicas)
    total = sum(map(sum, replicas))
    return _Costs(
        client=unit * client,
        compute=unit * compute,
        loop=unit * (total - compute),
        nginx=unit * sum(map(sum, nginx)),
    )


def _send(connection: Connection, bodies: list[bytes], seconds: float, pause_ms: int) -> int:
    """Send requests for some seconds, with a pause before each of them; return their number."""
    until, count = time.perf_counter() + seconds, 0
    while not count or time.perf_counter() < until:
        time.sleep(pause_ms / 1e3)
        connection.post("/predict", bodies[count % len(bodies)])
        count += 1
    return count


def _difference(old: dict[int, float], new: dict[int, float]) -> list[float]:
    """CPU seconds of each thread between two moments."""
    return [seconds - old.get(thread, 0.0) for thread, seconds in new.items()]


def measure_http(store: Path, seconds: float) -> Http:
    """Measure a service of the current version of a store.

    Args:
        store: The store.
        seconds: Duration of each of the 12 loads.

    Raises:
        ServiceError, ReplicaError, MissingProgramError: If the store cannot be served.
    """
    with Reference(store) as reference:
        speed = Speed(reference)
        speed.measure()
        with served(store, 1, "--cache-mb", "0") as service:
            direct, direct_busy = _idle(service, seconds), _busy(service, seconds)
            wait_ms = _waits_ms(service, direct, seconds)
            others_ms = {pause: _idle(service, seconds, pause_ms=pause).compute for pause in _OTHER_PAUSES_MS}
            request, answer = _sizes(service)
            speed.measure()
        with served(store, 1) as service:
            # The same query always: all answers come from the cache, and the event loop is the busiest thread.
            cached, cached_busy = (measure(service, seconds, bodies=1) for measure in (_idle, _busy))
        with served(store, 1, "--cache-mb", "0", "--max-queue", "1") as service:
            refused_ms = _refused_ms(service, seconds, direct_busy.loop)
        with served(store, 2, "--cache-mb", "0") as service:
            speed.measure()
            proxied, proxied_busy = _idle(service, seconds), _busy(service, seconds)
            proxied_wait_ms = _waits_ms(service, proxied, seconds)
            speed.measure()
    cached_loop = ThreadCost(idle_ms=cached.compute + cached.loop, busy_ms=cached_busy.compute + cached_busy.loop)
    return Http(
        clients=_CLIENTS,
        reference_ms=speed.reference_ms,
        slowdown=speed.slowdown,
        alone_ms=others_ms | {_PAUSE_MS: direct.compute},
        loop=ThreadCost(idle_ms=direct.loop, busy_ms=direct_busy.loop),
        cached_loop=cached_loop,
        refused=cached_loop.times(refused_ms / cached_loop.busy_ms),
        client=ThreadCost(idle_ms=direct.client, busy_ms=direct_busy.client),
        proxy=ThreadCost(idle_ms=proxied.nginx, busy_ms=proxied_busy.nginx),
        wait_ms=wait_ms,
        proxied_wait_ms=proxied_wait_ms,
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
