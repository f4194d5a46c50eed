"""Measure the costs of HTTP: the event loop, the load generator, nginx, and the waits between them.

One client waits before each request, so all threads are idle, and their caches are cold. With many clients, a thread
handles several requests after each other, and some work, such as the call that wakes up the event loop, is shared.
"""

from __future__ import annotations

import dataclasses
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
# Without load, a client waits so long before each request.
_PAUSE_SECONDS = 0.01


@dataclass(frozen=True)
class _Costs:
    """CPU times of a request, in milliseconds.

    Attributes:
        client: Of the load generator.
        compute: Of the threads that compute the answers: the busiest thread of each replica.
        loop: Of all other threads of the replicas.
        nginx: Of nginx; 0 without nginx.
        wait: Latency without these times; only with one client.
    """

    client: float
    compute: float
    loop: float
    nginx: float
    wait: float = 0.0


def _idle(service: Served, seconds: float, bodies: int = BODIES) -> _Costs:
    """Measure with one client, which waits before each request."""
    connection = Connection(service.address)
    _send(connection, service.bodies[:bodies], min(_WARM_SECONDS, seconds))
    own, before = time.thread_time(), _thread_times(service)
    count, latency = _send(connection, service.bodies[:bodies], seconds)
    after, last = _thread_times(service), time.thread_time()
    connection.close()
    spent = [_difference(old, new) for old, new in zip(before, after, strict=True)]
    costs = _costs(service, last - own, spent, count)
    cpu = costs.client + costs.compute + costs.loop + costs.nginx
    return dataclasses.replace(costs, wait=1e3 * latency / count - cpu)


def _busy(service: Served, seconds: float, bodies: int = BODIES) -> _Costs:
    """Measure with many clients."""
    service.closed_loop(_CLIENTS, min(_WARM_SECONDS, seconds), bodies)
    own, before = time.process_time(), _thread_times(service)
    exchanges, _ = service.closed_loop(_CLIENTS, seconds, bodies)
    after, last = _thread_times(service), time.process_time()
    spent = [_difference(old, new) for old, new in zip(before, after, strict=True)]
    return _costs(service, last - own, spent, len(exchanges))


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


def _send(connection: Connection, bodies: list[bytes], seconds: float) -> tuple[int, float]:
    """Send requests for some seconds; return their number and the sum of their latencies in seconds."""
    until, count, latency = time.perf_counter() + seconds, 0, 0.0
    while not count or time.perf_counter() < until:
        time.sleep(_PAUSE_SECONDS)
        start = time.perf_counter()
        connection.post("/predict", bodies[count % len(bodies)])
        latency += time.perf_counter() - start
        count += 1
    return count, latency


def _difference(old: dict[int, float], new: dict[int, float]) -> list[float]:
    """CPU seconds of each thread between two moments."""
    return [seconds - old.get(thread, 0.0) for thread, seconds in new.items()]


def measure_http(store: Path, seconds: float) -> Http:
    """Measure a service of the current version of a store.

    Args:
        store: The store.
        seconds: Duration of each of the seven loads.

    Raises:
        ServiceError, ReplicaError, MissingProgramError: If the store cannot be served.
    """
    with Reference(store) as reference:
        speed = Speed(reference)
        speed.measure()
        with served(store, 1, "--cache-mb", "0") as service:
            direct, direct_busy = _idle(service, seconds), _busy(service, seconds)
            request, answer = _sizes(service)
            speed.measure()
        with served(store, 1) as service:
            # The same query always: all answers come from the cache, and the event loop is the busiest thread.
            cached, cached_busy = (measure(service, seconds, bodies=1) for measure in (_idle, _busy))
        with served(store, 1, "--cache-mb", "0", "--max-queue", "1") as service:
            refused = _refused_ms(service, seconds, direct_busy.loop)
        with served(store, 2, "--cache-mb", "0") as service:
            speed.measure()
            proxied, proxied_busy = _idle(service, seconds), _busy(service, seconds)
            speed.measure()
    return Http(
        clients=_CLIENTS,
        reference_ms=speed.reference_ms,
        slowdown=speed.slowdown,
        loop=ThreadCost(idle_ms=direct.loop, busy_ms=direct_busy.loop),
        cached_loop=ThreadCost(idle_ms=cached.compute + cached.loop, busy_ms=cached_busy.compute + cached_busy.loop),
        refused_ms=refused,
        alone_ms=direct.compute,
        client=ThreadCost(idle_ms=direct.client, busy_ms=direct_busy.client),
        proxy=ThreadCost(idle_ms=proxied.nginx, busy_ms=proxied_busy.nginx),
        wait_ms=max(0.0, direct.wait),
        proxy_wait_ms=max(0.0, proxied.wait - direct.wait),
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
