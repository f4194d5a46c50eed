"""`python -m loadtests.bench_service --store STORE --seconds 20`: the cost of serving over HTTP.

The benchmark copies the current version of the store and queries the copy in two ways: through its predictor alone, and
over HTTP through `recollect serve` without the answer cache. The queries are texts of the version's own memory. Client
and server share the machine's cores. This changes latencies at saturation, but not CPU times. The last line of the
output is JSON. Flags that the benchmark does not know are passed to `recollect serve`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from loadtests.client import Reply
from loadtests.load import Exchange, Load, closed_loop, latency_percentiles, open_loop
from loadtests.processes import cpu_model, cpu_seconds, steal_seconds
from loadtests.replica import Replica, ReplicaError, replica
from loadtests.swaps import add_changed_version, copied_versions, swap_storm
from loadtests.workload import sample_texts
from recollect.service.errors import ServiceError
from recollect.service.model import open_model
from recollect.service.options import resolve_options
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.store import Store
from recollect.service.threads import ThreadBudget

_QUERIES, _BATCH, _CLIENTS, _CONNECTIONS = 512, 32, 64, 64
_WARM_SECONDS = 2.0
# Versions that are activated in turn.
_VERSIONS = 3
# Request rate of the steady load, as a share of the rate at saturation.
_STEADY_SHARE = 0.6
# The server checks this often for a new version. The wait is short, so that mainly the opening of versions takes time.
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class SwapFigures:
    """Figures of continuous version swaps at the rate of the steady load.

    Attributes:
        p99_ms: 99th percentile of the latencies.
        ratio: `p99_ms` divided by `steady_p99_ms`.
        count: Number of swaps.
        median_seconds: Median duration of a swap, from the activation until the server serves the version.
        max_seconds: Longest duration of a swap.
        errors: As in `Measured`.
    """

    p99_ms: float
    ratio: float
    count: int
    median_seconds: float
    max_seconds: float
    errors: int


@dataclass(frozen=True)
class Measured:
    """The figures in the last line of the output. Times are milliseconds for one query or one request.

    Attributes:
        raw_cpu_ms: CPU time to tokenise, encode, search and combine in batches, without HTTP, with as many threads as
            the server.
        served_cpu_ms: CPU time of the server at saturation.
        cpu_ratio: `served_cpu_ms` divided by `raw_cpu_ms`.
        raw_p50_ms: Median latency without HTTP, when each query directly follows the query before.
        light_p50_ms: Median latency over HTTP with one client, which sends each request directly after an answer.
        light_p99_ms: 99th percentile of the latencies under the same load as `light_p50_ms`.
        saturated_qps: Answered requests per second at saturation.
        steady_p99_ms: 99th percentile of the latencies at a constant rate of 60% of saturation. A latency counts from
            the time when the request was due.
        swap_p99_ms: Like `steady_p99_ms`, during continuous version swaps; the higher figure of the two kinds of swaps.
        swaps: Number of all version swaps.
        shared_swaps: Swaps between versions with equal files.
        changed_swaps: Swaps between versions without equal files.
        errors: Number of lost requests, of requests that were never sent, of answers with another status than 200, and
            of answers that name two versions.
        steal_seconds: CPU time that the hypervisor gave to other virtual machines during the benchmark.
        cpu: Name of the machine's CPU.
        cpu_flags: Instruction sets of the CPU that matter for speed.
    """

    raw_cpu_ms: float
    served_cpu_ms: float
    cpu_ratio: float
    raw_p50_ms: float
    light_p50_ms: float
    light_p99_ms: float
    saturated_qps: float
    steady_p99_ms: float
    swap_p99_ms: float
    swaps: int
    shared_swaps: SwapFigures
    changed_swaps: SwapFigures
    errors: int
    steal_seconds: float
    cpu: str
    cpu_flags: list[str]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench_service", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is measured")
    parser.add_argument("--seconds", type=float, default=20, help="duration of each load; default: 20")
    parser.add_argument("--threads", type=int, default=0, help="see `recollect serve`")
    parser.add_argument("--workers", type=int, default=1, help="see `recollect serve`")
    options, serve_flags = parser.parse_known_args(arguments)
    try:
        ThreadBudget.of(options.workers, options.threads).apply()  # child processes inherit the same limits
        with copied_versions(options.store, _VERSIONS) as (store, versions):
            print(json.dumps(dataclasses.asdict(Bench(store, versions, options, serve_flags).measure())))
    except (ServiceError, ReplicaError, TimeoutError) as error:
        parser.error(str(error))
    return 0


class Bench:
    """Measures a store with several versions.

    Args:
        store: The store.
        versions: The versions of the store. The first is the current version.
        options: `seconds`, `threads` and `workers`.
        serve_flags: Other flags of `recollect serve`.
    """

    def __init__(self, store: Store, versions: list[str], options: argparse.Namespace, serve_flags: list[str]) -> None:
        self._store, self._versions, self._seconds = store, versions, options.seconds
        budget = ThreadBudget.of(options.workers, options.threads)
        self._threads = budget.threads * budget.workers
        self._settings = {"threads": options.threads, "workers": options.workers, "cache_mb": 0}
        self._serve_flags = serve_flags
        queries = sample_texts(store.open(versions[0]).instances.texts, _QUERIES)
        self._bodies = [json.dumps({"query": query}).encode() for query in queries]

    def measure(self) -> Measured:
        """Measure all figures of the output."""
        steal_before = steal_seconds()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # a process that does nothing else
            measuring = pool.submit(measure_predictor, str(self._store.root), self._threads, self._seconds / 2)
            raw_cpu, raw_p50 = measuring.result()
        with replica(self._store.root, self._serve_flags, poll_seconds=_POLL_SECONDS, **self._settings) as server:
            self._closed_loop(server, _CLIENTS, min(_WARM_SECONDS, self._seconds))
            light, *_ = self._closed_loop(server, 1, self._seconds)
            saturated, duration, cpu = self._closed_loop(server, _CLIENTS, self._seconds)
            rate = _STEADY_SHARE * len(saturated) / duration
            steady = self._open_loop(server, rate)
            (steady_p99,) = latency_percentiles(steady, 99)
            shared = self._swaps(server, rate, self._versions, steady_p99)
            first = self._versions[0]
            others = [add_changed_version(self._store, first, number) for number in range(1, len(self._versions))]
            changed = self._swaps(server, rate, [first, *others], steady_p99)
        served_cpu = 1e3 * cpu / len(saturated)
        light_p50, light_p99 = latency_percentiles(light, 50, 99)
        cpu_name, cpu_flags = cpu_model()
        return Measured(
            raw_cpu_ms=round(raw_cpu, 3),
            served_cpu_ms=round(served_cpu, 3),
            cpu_ratio=round(served_cpu / raw_cpu, 3),
            raw_p50_ms=round(raw_p50, 3),
            light_p50_ms=light_p50,
            light_p99_ms=light_p99,
            saturated_qps=round(len(saturated) / duration, 1),
            steady_p99_ms=steady_p99,
            swap_p99_ms=max(shared.p99_ms, changed.p99_ms),
            swaps=shared.count + changed.count,
            shared_swaps=shared,
            changed_swaps=changed,
            errors=_errors([*light, *saturated, *steady]) + shared.errors + changed.errors,
            steal_seconds=round(steal_seconds() - steal_before, 2),
            cpu=cpu_name,
            cpu_flags=cpu_flags,
        )

    def _closed_loop(self, server: Replica, clients: int, seconds: float) -> tuple[list[Exchange], float, float]:
        """Run a closed loop; return its exchanges, its duration, and the server's CPU seconds."""
        exchanges: list[Exchange] = []
        before = cpu_seconds(server.process)
        duration = closed_loop(self._load(server, exchanges.append), clients, seconds)
        return exchanges, duration, cpu_seconds(server.process) - before

    def _open_loop(self, server: Replica, rate: float) -> list[Exchange]:
        exchanges: list[Exchange] = []
        open_loop(self._load(server, exchanges.append), rate, self._seconds, _CONNECTIONS)
        return exchanges

    def _swaps(self, server: Replica, rate: float, versions: list[str], steady_p99: float) -> SwapFigures:
        with swap_storm(self._store, versions, server.address) as seconds:
            exchanges = self._open_loop(server, rate)
        (p99,) = latency_percentiles(exchanges, 99)
        return SwapFigures(
            p99_ms=p99,
            ratio=round(p99 / steady_p99, 3),
            count=len(seconds),
            median_seconds=round(statistics.median(seconds), 3),
            max_seconds=round(max(seconds), 3),
            errors=_errors(exchanges),
        )

    def _load(self, server: Replica, record: Callable[[Exchange], Any]) -> Load:
        def request(number: int) -> tuple[str, bytes]:
            return "/predict", self._bodies[number % len(self._bodies)]

        return Load(server.address, request, _judge, record)


def measure_predictor(store: str, threads: int, seconds: float) -> tuple[float, float]:
    """Measure the predictor of the current version in this process, without HTTP.

    Args:
        store: The store.
        threads: Number of threads that answer batches. They share caches and memory bandwidth, so a query costs more
            CPU time than on one thread.
        seconds: Duration of each of the two measurements.

    Returns:
        CPU time of a query in batches, and median latency of single queries, in milliseconds.
    """
    predictor = open_model(store).predictor
    texts = sample_texts(predictor.bundle.instances.texts, _QUERIES)
    return _batch_cpu_ms(predictor, texts, threads, seconds), _single_p50_ms(predictor, texts, seconds)


def _batch_cpu_ms(predictor: Predictor, texts: list[str], threads: int, seconds: float) -> float:
    options, numbers = resolve_options(predictor.defaults), itertools.count()
    answered: list[int] = []
    before, until = time.process_time(), time.perf_counter() + seconds

    def work() -> None:
        while time.perf_counter() < until:
            start = next(numbers) * _BATCH % len(texts)
            batch = texts[start : start + _BATCH]
            predictor.predict(batch, options)
            answered.append(len(batch))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 1e3 * (time.process_time() - before) / sum(answered)


def _single_p50_ms(predictor: Predictor, texts: list[str], seconds: float) -> float:
    latencies: list[float] = []
    options, until = resolve_options(predictor.defaults), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        predictor.predict([texts[len(latencies) % len(texts)]], options)
        latencies.append(time.perf_counter() - start)
    return 1e3 * statistics.median(latencies)


def _errors(exchanges: list[Exchange]) -> int:
    return sum(bool(exchange.error) for exchange in exchanges)


def _judge(number: int, reply: Reply) -> str:
    """Check that an answer has status 200 and names the same version in its header and body."""
    if reply.status != 200:
        return str(reply.status)
    return "" if reply.body.startswith(f'{{"version":"{reply.version}"'.encode()) else "two versions"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
