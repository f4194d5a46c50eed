"""`python -m loadtests.bench_service --store STORE --seconds 20`: what serving costs beyond answering.

A copy of the current version is asked twice: by its predictor alone, and over HTTP as `recollect serve` serves it,
without its cache of answers. The queries are texts of its own memory. The last line printed is JSON. Client and server
share the machine's cores; CPU times do not depend on that, latencies at saturation do. Further flags go to `recollect
serve`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests import raw
from loadtests.arrivals import Exchange, Load, closed_loop, milliseconds, open_loop
from loadtests.client import Reply
from loadtests.processes import cpu_seconds
from loadtests.replica import Replica, ReplicaError, replica, two_versions
from loadtests.storm import swap_storm
from loadtests.workload import spread
from service.errors import ServiceError
from service.store.store import Store
from service.threads import ThreadBudget

_QUERIES, _CLIENTS, _CONNECTIONS = 512, 64, 64
_WARM_SECONDS = 2.0
# Requests a second under light load; the share of saturation that a busy server gets.
_LIGHT_RATE, _BUSY = 20, 0.6
# So that a storm swaps as fast as versions open, not as seldom as a replica looks.
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Measured:
    """The JSON line; milliseconds a query or request.

    Attributes:
        raw_cpu_ms: CPU to tokenise, encode, search and combine, in batches, without HTTP, with as many threads at work
            as the server has.
        raw_alone_cpu_ms: The same with one thread, whose core shares nothing.
        served_cpu_ms: CPU of the server at saturation, a request.
        raw_p50_ms: One query at a time, without HTTP, one right after the other.
        raw_paced_p50_ms: The same at the rate of a paced load: a machine that rests between queries is slower.
        light_p50_ms: Over HTTP, one client, one request right after the other.
        light_paced_p50_ms: Over HTTP, at a constant rate.
        saturated_qps: Requests answered a second.
        steady_p99_ms: At a constant rate of 60% of that, from when each request was due.
        swap_p99_ms: The same while versions are swapped all the time.
        swaps: How often they were.
        errors: Answers that were no 200, or named two versions, and requests that got none or were never sent.
    """

    raw_cpu_ms: float
    raw_alone_cpu_ms: float
    served_cpu_ms: float
    cpu_ratio: float
    raw_p50_ms: float
    raw_paced_p50_ms: float
    light_p50_ms: float
    light_p99_ms: float
    light_paced_p50_ms: float
    saturated_qps: float
    steady_p99_ms: float
    swap_p99_ms: float
    swaps: int
    errors: int


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench_service", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store; its current version is measured")
    parser.add_argument("--seconds", type=float, default=20, help="how long each load lasts; 20 unless told")
    parser.add_argument("--threads", type=int, default=0, help="as of `recollect serve`")
    parser.add_argument("--workers", type=int, default=1, help="as of `recollect serve`")
    parser.add_argument("--clients", help="numbers of clients, as 1,8,64: tells what encoding together wins for each")
    given, flags = parser.parse_known_args(arguments)
    try:
        clients = [int(number) for number in given.clients.split(",")] if given.clients else []
        ThreadBudget.of(given.workers, given.threads).apply()  # what is measured beside the server is told the same
        with two_versions(given.store) as (store, versions):
            bench = Bench(store, versions, given, flags)
            measured = bench.measure()
            if clients:
                bench.compare(clients)
            print(json.dumps(dataclasses.asdict(measured)))
    except (ServiceError, ReplicaError, TimeoutError, ValueError) as error:
        parser.error(str(error))
    return 0


class Bench:
    """A store of two versions, measured.

    Args:
        store: The store.
        versions: The two; the first is current.
        given: `seconds`, `threads` and `workers`.
        flags: Further ones of `recollect serve`.
    """

    def __init__(self, store: Store, versions: list[str], given: argparse.Namespace, flags: list[str]) -> None:
        self._store, self._versions, self._seconds = store, versions, given.seconds
        budget = ThreadBudget.of(given.workers, given.threads)
        self._threads = budget.threads * budget.workers
        self._settings = {"threads": given.threads, "workers": given.workers, "cache_mb": 0}
        self._flags = flags
        queries = spread(store.open(versions[0]).instance_texts, _QUERIES)
        self._bodies = [json.dumps({"query": query}).encode() for query in queries]

    def measure(self) -> Measured:
        """All figures of the JSON line."""
        unserved = raw.measure(self._store.root, _QUERIES, self._threads, self._seconds / 2, 1 / _LIGHT_RATE)
        with replica(self._store.root, self._flags, poll_seconds=_POLL_SECONDS, **self._settings) as server:
            self._closed(server, _CLIENTS, min(_WARM_SECONDS, self._seconds))
            light, *_ = self._closed(server, 1, self._seconds)
            paced = self._open(server, _LIGHT_RATE)
            saturated, lasted, spent = self._closed(server, _CLIENTS, self._seconds)
            rate = _BUSY * len(saturated) / lasted
            steady = self._open(server, rate)
            with swap_storm(self._store, self._versions, server.address) as swaps:
                swapped = self._open(server, rate)
        served_cpu = 1e3 * spent / len(saturated)
        light_p50, light_p99 = milliseconds(light, 50, 99)
        return Measured(
            raw_cpu_ms=round(unserved.cpu_ms, 3),
            raw_alone_cpu_ms=round(unserved.alone_cpu_ms, 3),
            served_cpu_ms=round(served_cpu, 3),
            cpu_ratio=round(served_cpu / unserved.cpu_ms, 3),
            raw_p50_ms=round(unserved.p50_ms, 3),
            raw_paced_p50_ms=round(unserved.paced_p50_ms, 3),
            light_p50_ms=light_p50,
            light_p99_ms=light_p99,
            light_paced_p50_ms=milliseconds(paced, 50)[0],
            saturated_qps=round(len(saturated) / lasted, 1),
            steady_p99_ms=milliseconds(steady, 99)[0],
            swap_p99_ms=milliseconds(swapped, 99)[0],
            swaps=len(swaps),
            errors=sum(bool(each.error) for each in (*light, *paced, *saturated, *steady, *swapped)),
        )

    def compare(self, clients: list[int]) -> None:
        """A table of what encoding queries together wins over each alone, for so many clients."""
        print(
            f"{'clients':>7}{'together':>10}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms':>9}", file=sys.stderr
        )
        for together in (1, 32):
            with replica(self._store.root, self._flags, encode_together=together, **self._settings) as server:
                self._closed(server, _CLIENTS, min(_WARM_SECONDS, self._seconds))
                for count in clients:
                    exchanges, lasted, spent = self._closed(server, count, self._seconds)
                    p50, p99 = milliseconds(exchanges, 50, 99)
                    figures = f"{len(exchanges) / lasted:12.1f}{p50:9.2f}{p99:9.2f}{1e3 * spent / len(exchanges):9.2f}"
                    print(f"{count:7}{together:10}{figures}", file=sys.stderr, flush=True)

    def _closed(self, server: Replica, clients: int, seconds: float) -> tuple[list[Exchange], float, float]:
        """What so many clients exchange, how long it lasted, and the CPU seconds that the server took."""
        exchanges: list[Exchange] = []
        before = cpu_seconds(server.process)
        lasted = closed_loop(self._load(server, exchanges.append), clients, seconds)
        return exchanges, lasted, cpu_seconds(server.process) - before

    def _open(self, server: Replica, rate: float) -> list[Exchange]:
        exchanges: list[Exchange] = []
        unsent = open_loop(self._load(server, exchanges.append), rate, self._seconds, _CONNECTIONS)
        return exchanges + [Exchange(-1, 0, 0, 0, "", "never sent")] * unsent

    def _load(self, server: Replica, seen: Callable[[Exchange], Any]) -> Load:
        def request(nth: int) -> tuple[str, bytes]:
            return "/predict", self._bodies[nth % len(self._bodies)]

        return Load(server.address, request, _judge, seen)


def _judge(nth: int, reply: Reply) -> str:
    """An answer is a 200 whose header and body name the same version."""
    if reply.status != 200:
        return str(reply.status)
    return "" if reply.body.startswith(f'{{"version":"{reply.version}"'.encode()) else "two versions"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
