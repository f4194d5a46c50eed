"""Measure the costs of requests in the service: the threads, the load generator, nginx, and the waits between them.

For each replica, one client waits before each request, so that caches get cold during the pause. With many clients, a
thread handles several requests after each other, and some work, such as the call that wakes up the event loop, is
shared. The waits of the computing thread within its batches are measured with many clients too, for several sizes of
batches. The load generator and the other waits are measured with requests at random times, and these waits also while
a core is busy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.fleet.constants import DeploymentCosts, Http, Refused, ThreadCost
from benchmarks.fleet.measurements.reference import Reference
from benchmarks.fleet.measurements.service_load import BODIES, Served, served
from loadtests.client import Connection, Reply
from loadtests.processes import busy_seconds, thread_times

_WARM_SECONDS = 2.0
_CLIENTS = 32
# Milliseconds for which a client waits before each request.
_PAUSES_MS = (0, 1, 3, 10, 30)
# Requests per second of two open loops. Both show the costs of the load generator, and the second one the waits.
_MEDIUM_RATE, _LOW_RATE = 200.0, 50.0
# Sizes of batches for which the waits of the computing thread are measured.
_BATCH_SIZES = (1, 2, 4, 8, 16)
# Refusals are measured at this multiple of the rate at which one client for each replica gets answers.
_OVERLOAD = 2.0
# The waits and the idle machine are measured this many times as long as the costs.
_LONG = 3
# After the last request, the service gets so many seconds before its use of an idle machine is measured.
_SETTLE_SECONDS = 2.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Threads:
    """CPU seconds of the threads of a service.

    Attributes:
        loop: The event loops: the main thread of each replica.
        compute: The threads that compute the answers: the busiest other thread of each replica.
        nginx: All threads of nginx; 0 without nginx.
    """

    loop: float
    compute: float
    nginx: float


@dataclass(frozen=True)
class _Costs:
    """Mean CPU times of a request, in milliseconds. `_Threads` explains those of the service.

    The CPU times of all loads are scaled to the same speed of the machine.

    Attributes:
        slowness: The factor by which the CPU times during the load were longer than the scaled ones.
        interval: Mean time from a request to the next one, not scaled.
        client: CPU time of the load generator.
    """

    slowness: float
    interval: float
    client: float
    loop: float
    compute: float
    nginx: float


@dataclass(frozen=True)
class _Requests:
    """Measures the costs of requests to a service.

    Attributes:
        service: The service.
        seconds: Duration of each load.
        reference: Shows the speed of the machine around each load.
        reference_ms: Time of the reference to which the CPU times are scaled.
        bodies: Number of different requests.
    """

    service: Served
    seconds: float
    reference: Reference
    reference_ms: float
    bodies: int = BODIES

    def costs(self, paused: dict[int, _Costs], refused: Refused) -> DeploymentCosts:
        """The costs of a request.

        Args:
            paused: The costs with clients that pause.
            refused: The cost of a refused request.
        """
        busy, loops = self.busy(), len(self.service.replicas)
        medium, _ = self._measured(partial(self.service.other_latencies_ms, _MEDIUM_RATE))
        low, wait_ms = self._waits()
        with self.reference.busy_core():
            _, busy_wait_ms = self._waits()
        return DeploymentCosts(
            loop=_thread_cost(busy.loop, [(loops * each.interval, each.loop) for each in paused.values()]),
            client=_thread_cost(busy.client, [(each.interval, each.client) for each in (medium, low)]),
            proxy=_thread_cost(busy.nginx, [(each.interval, each.nginx) for each in paused.values()]),
            refused=refused,
            wait_ms=wait_ms,
            busy_wait_ms=busy_wait_ms,
            idle_cores=self._idle_cores(),
        )

    def busy(self) -> _Costs:
        """The costs with many clients."""
        return self._measured(lambda seconds: self.service.closed_loop(_CLIENTS, seconds, self.bodies)[0])[0]

    def paused(self) -> dict[int, _Costs]:
        """The costs if each replica has one client, by the milliseconds for which it pauses before each request."""
        return {pause: self._paused(pause) for pause in _PAUSES_MS}

    def refused(self) -> Refused:
        """The cost of a refused request.

        The service must have a queue of one query. Requests arrive at random times. nginx sends a refused request to
        the other replica, so the refusals are counted at the replicas.
        """
        alone = self._paused(0)  # no request is refused
        rate, loops = _OVERLOAD * 1e3 / alone.interval, len(self.service.replicas)

        def statuses(seconds: float) -> list[int]:
            before = self.service.statuses()
            self.service.open_loop(rate, seconds)
            return list((self.service.statuses() - before).elements())

        costs, handled = self._measured(statuses)
        answered, refused = handled.count(200), handled.count(503)
        loop_ms, elapsed_ms = len(handled) * costs.loop, len(handled) * costs.interval
        tasks = 2 * answered + refused  # an answer wakes up the event loop twice
        return Refused(
            loop_ms=max(0.0, (loop_ms - answered * alone.loop) / max(1, refused)),
            pause_ms=(loops * elapsed_ms - loop_ms) / tasks,
        )

    def lock_share(self) -> float:
        """The time for which the computing thread waits, as a share of the CPU time of the event loop.

        There must be one replica, whose batches have at most half as many queries as there are clients. So queries wait
        at all times, and the thread never waits for a query.
        """
        costs = self.busy()
        return max(0.0, costs.interval / costs.slowness - costs.compute) / costs.loop

    def _paused(self, pause_ms: int) -> _Costs:
        """The costs if each replica has one client, which pauses before each request."""
        return self._measured(partial(_send, self.service, pause_ms, self.bodies))[0]

    def _waits(self) -> tuple[_Costs, list[float]]:
        """The costs with requests at random times at a low rate, and the percentiles of the waits in milliseconds."""
        costs, rests_ms = self._measured(partial(self.service.other_latencies_ms, _LOW_RATE), _LONG)
        waits_ms = np.percentile(rests_ms, range(101)) - costs.slowness * (costs.client + costs.loop + costs.nginx)
        return costs, waits_ms.tolist()

    def _idle_cores(self) -> float:
        """The share of a core that the machine uses while no requests are sent, without the event loops."""
        time.sleep(_SETTLE_SECONDS)
        start, busy, before = time.perf_counter(), busy_seconds(), _thread_times(self.service)
        time.sleep(_LONG * self.seconds)
        used = busy_seconds() - busy - _spent(self.service, before).loop
        return max(0.0, used / (time.perf_counter() - start))

    def _measured(self, run: Callable[[float], Sequence[Result]], factor: int = 1) -> tuple[_Costs, Sequence[Result]]:
        """The costs of a load, and its results, after a shorter load to warm up.

        Args:
            run: Runs the load for some seconds, and returns a result for each request.
            factor: Duration of the load, as a multiple of `seconds`.
        """
        before_ms = self.reference.time_ms()
        run(min(_WARM_SECONDS, self.seconds))
        before, start, own = _thread_times(self.service), time.perf_counter(), time.process_time()
        results = run(factor * self.seconds)
        client, seconds, spent = time.process_time() - own, time.perf_counter() - start, _spent(self.service, before)
        slowness = (before_ms + self.reference.time_ms()) / 2 / self.reference_ms
        unit = 1e3 / len(results) / slowness
        costs = _Costs(
            slowness=slowness,
            interval=1e3 * seconds / len(results),
            client=unit * client,
            loop=unit * spent.loop,
            compute=unit * spent.compute,
            nginx=unit * spent.nginx,
        )
        return costs, results


def _thread_times(service: Served) -> list[dict[int, float]]:
    """The times of the threads of each replica, then those of nginx."""
    replicas = [replica.process for replica in service.replicas]
    return [thread_times(process) for process in [*replicas, *([service.nginx] if service.nginx else [])]]


def _spent(service: Served, before: list[dict[int, float]]) -> _Threads:
    """The times of the threads since `before`."""
    spent = [
        {thread: seconds - old.get(thread, 0.0) for thread, seconds in new.items()}
        for old, new in zip(before, _thread_times(service), strict=True)
    ]
    # The event loop runs on the main thread, whose id is that of the process.
    loops = [threads.pop(replica.process) for replica, threads in zip(service.replicas, spent, strict=False)]
    replicas, nginx = spent[: len(loops)], spent[len(loops) :]
    return _Threads(
        loop=sum(loops),
        compute=sum(max(threads.values()) for threads in replicas),
        nginx=sum(sum(threads.values()) for threads in nginx),
    )


def _thread_cost(busy_ms: float, paused: Sequence[tuple[float, float]], wakeups: int = 2) -> ThreadCost:
    """The cost of a request on a thread.

    Args:
        busy_ms: CPU time with many clients.
        paused: The time between two requests of the thread, and the CPU time of a request, for each load in which the
            thread pauses.
        wakeups: Number of times that a request wakes up the thread.
    """
    return ThreadCost(
        busy_ms=busy_ms,
        pause_ms=[(interval - cost) / wakeups for interval, cost in paused],
        woken_ms=[cost for _, cost in paused],
    )


def _send(service: Served, pause_ms: int, bodies: int, seconds: float) -> list[Reply]:
    """Send requests for some seconds from one client for each replica, with a pause before each request.

    Returns:
        The answers.

    Raises:
        LostRequestError: If a request got no answer.
    """
    until = time.perf_counter() + seconds

    def send(first: int) -> list[Reply]:
        replies: list[Reply] = []
        with contextlib.closing(Connection(service.address)) as connection:
            while not replies or time.perf_counter() < until:
                time.sleep(pause_ms / 1e3)
                number = first + len(replies)
                replies.append(connection.post("/predict", service.bodies[number % min(bodies, len(service.bodies))]))
        return replies

    clients = len(service.replicas)
    apart = BODIES // clients  # clients send different queries at the same time
    with ThreadPoolExecutor(clients) as pool:
        return [reply for replies in pool.map(send, range(0, clients * apart, apart)) for reply in replies]


def measure_http(store: Path, seconds: float) -> Http:
    """Measure a service of the current version of a store.

    Args:
        store: The store.
        seconds: Duration of each load.

    Raises:
        ServiceError, ReplicaError, MissingProgramError: If the store cannot be served.
        LostRequestError: If a request got no answer.
    """
    with Reference(store) as reference:
        reference_ms = reference.time_ms()

        def requests(service: Served, bodies: int = BODIES) -> _Requests:
            return _Requests(service, seconds, reference, reference_ms, bodies)

        def refused(replicas: int) -> Refused:
            with served(store, replicas, "--cache-mb", "0", "--max-queue", "1") as service:
                return requests(service).refused()

        refusal = refused(1)
        with served(store, 1, "--cache-mb", "0") as service:
            alone = requests(service)
            paused = alone.paused()
            single = alone.costs(paused, refusal)
            request, answer = _sizes(service)
        with served(store, 1) as service:
            # The same query always, so all answers come from the cache.
            cached = requests(service, bodies=1)
            pauses = [(each.interval, each.loop) for each in cached.paused().values()]
            cached_loop = _thread_cost(cached.busy().loop, pauses, wakeups=1)
        lock_share = {}
        for size in _BATCH_SIZES:
            with served(store, 1, "--cache-mb", "0", "--encode-together", f"{size}") as service:
                lock_share[size] = requests(service).lock_share()
        refusal = refused(2)
        with served(store, 2, "--cache-mb", "0") as service:
            both = requests(service)
            proxied = both.costs(both.paused(), refusal)
    return Http(
        clients=_CLIENTS,
        reference_ms=reference_ms,
        alone_ms={pause: each.compute for pause, each in paused.items() if pause},
        single=single,
        proxied=proxied,
        cached_loop=cached_loop,
        lock_share=lock_share,
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
