"""Measure the costs of HTTP with one client: the event loop, the load generator, nginx, and the waits between them."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.fleet.constants import Http
from benchmarks.fleet.measurements.service_load import Served, served
from loadtests.client import Connection
from loadtests.processes import ThreadTime, thread_times

_WARM_SECONDS = 2.0


class _Light:
    """One client, which sends its next request when the last one is answered. Times are milliseconds for each request.

    Attributes:
        client: CPU time of the client.
        compute: CPU time of the threads that compute the answers: the busiest thread of each replica.
        loop: CPU time of all other threads of the replicas.
        nginx: CPU time of nginx; 0 without nginx.
        wait: Latency without these CPU times, and without the times in which threads wait for a core.
    """

    def __init__(self, service: Served, seconds: float, bodies: int = 512) -> None:
        connection = Connection(service.address)
        _send(connection, service.bodies[:bodies], min(_WARM_SECONDS, seconds))
        processes = [*service.replicas, *([service.nginx] if service.nginx else [])]
        own, before = _own(), [thread_times(process) for process in processes]
        count, latency = _send(connection, service.bodies[:bodies], seconds)
        after, last = [thread_times(process) for process in processes], _own()
        connection.close()
        unit = 1e3 / count
        spent = [_difference(old, new) for old, new in zip(before, after, strict=True)]
        replicas = spent[: len(service.replicas)]
        self.client = unit * (last.cpu - own.cpu)
        self.compute = unit * sum(max(thread.cpu for thread in threads) for threads in replicas)
        self.loop = unit * sum(thread.cpu for threads in replicas for thread in threads) - self.compute
        self.nginx = unit * sum(thread.cpu for threads in spent[len(replicas) :] for thread in threads)
        queued = last.queued - own.queued + sum(thread.queued for threads in spent for thread in threads)
        self.wait = unit * (latency - queued) - self.client - self.compute - self.loop - self.nginx


def _send(connection: Connection, bodies: list[bytes], seconds: float) -> tuple[int, float]:
    """Send requests for some seconds; return their number and the sum of their latencies in seconds."""
    start = time.perf_counter()
    for number in itertools.count(1):
        connection.post("/predict", bodies[number % len(bodies)])
        if (spent := time.perf_counter() - start) > seconds:
            return number, spent
    raise AssertionError("unreachable")


def _own() -> ThreadTime:
    return thread_times(os.getpid())[threading.get_native_id()]


def _difference(old: dict[int, ThreadTime], new: dict[int, ThreadTime]) -> list[ThreadTime]:
    none = ThreadTime(0.0, 0.0)
    return [
        ThreadTime(spent.cpu - old.get(thread, none).cpu, spent.queued - old.get(thread, none).queued)
        for thread, spent in new.items()
    ]


def measure_http(store: Path, seconds: float) -> Http:
    """Measure a service of the current version of a store.

    Args:
        store: The store.
        seconds: Duration of each of the three loads.

    Raises:
        ServiceError, ReplicaError, MissingProgramError: If the store cannot be served.
    """
    with served(store, 1, "--cache-mb", "0") as service:
        direct = _Light(service, seconds)
        request, answer = _sizes(service)
    with served(store, 1) as service:
        cached = _Light(service, seconds, bodies=1)
    with served(store, 2, "--cache-mb", "0") as service:
        proxied = _Light(service, seconds)
    return Http(
        loop_ms=direct.loop,
        client_ms=direct.client,
        wait_ms=max(0.0, direct.wait),
        proxy_ms=proxied.nginx,
        proxy_wait_ms=max(0.0, proxied.wait - direct.wait),
        cached_loop_ms=cached.compute + cached.loop,
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
