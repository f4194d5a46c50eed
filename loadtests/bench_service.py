"""`python -m loadtests.bench_service --store STORE --seconds 20`: the cost of serving over HTTP.

The benchmark copies the current version of the store and queries the copy in two ways: through its predictor alone, and
over HTTP through `recollect serve` without the answer cache. The queries are texts of the version's own memory. Client
and server share the machine's cores. This changes latencies at saturation, but not CPU times. Flags that the benchmark
does not know are passed to `recollect serve`. The last line of the output is JSON. Times are milliseconds for a query:

    raw_cpu_ms      CPU time to tokenise, encode, search and combine in batches, without HTTP, with as many threads as
                    the server
    served_cpu_ms   CPU time of the server at saturation
    cpu_ratio       served_cpu_ms / raw_cpu_ms
    loop_cpu_ms     the part of served_cpu_ms that the event loop's thread takes
    raw_p50_ms      median latency without HTTP, when each query directly follows the query before
    light_p50_ms    median latency over HTTP with one client, which sends each request directly after an answer
    http_p50_ms     light_p50_ms - raw_p50_ms
    light_p99_ms    99th percentile under the same load
    saturated_qps   answered requests per second at saturation
    steady_p99_ms   99th percentile at a constant rate of 60% of saturation, from the time when a request was due
    swap_p99_ms     the same during continuous swaps of versions that have no equal files
    swaps           number of these swaps
    swap_seconds    median duration of a swap, from the activation until the server serves the version
    errors          lost requests, requests that were never sent, and answers with another status than 200
    cpu             name of the machine's CPU
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from loadtests.load import Load, closed_loop, count_errors, latency_percentiles, open_loop
from loadtests.processes import cpu_model, cpu_seconds, main_thread_seconds
from loadtests.replica import ReplicaError, replica
from loadtests.swaps import copied_versions, swap_storm
from loadtests.texts import sample_texts
from recollect.core.errors import ServiceError
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor
from recollect.core.system.threads import ThreadBudget
from recollect.model import open_model
from recollect.store.store import Store

_QUERIES, _BATCH, _CLIENTS, _CONNECTIONS = 512, 32, 64, 64
_WARM_SECONDS = 2.0
# Versions that are activated in turn.
_VERSIONS = 3
# Request rate of the steady load, as a share of the rate at saturation.
_STEADY_SHARE = 0.6
# The server checks this often for a new version. The wait is short, so that mainly the opening of versions takes time.
_POLL_SECONDS = 0.1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench_service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", type=Path, required=True, help="bundle store, whose current version is measured")
    parser.add_argument("--seconds", type=float, default=20, help="duration of each load; default: 20")
    parser.add_argument("--threads", type=int, default=0, help="see `recollect serve`")
    parser.add_argument("--workers", type=int, default=1, help="see `recollect serve`")
    options, serve_flags = parser.parse_known_args(arguments)
    budget = ThreadBudget.of(options.workers, options.threads)
    try:
        budget.apply()  # child processes inherit the same limits
        with copied_versions(options.store, _VERSIONS) as (store, versions):
            print(json.dumps(measure(store, versions, options.seconds, budget, serve_flags)))
    except (ServiceError, ReplicaError, TimeoutError) as error:
        parser.error(str(error))
    return 0


def measure(
    store: Store, versions: list[str], seconds: float, budget: ThreadBudget, serve_flags: list[str]
) -> dict[str, Any]:
    """Measure all figures of the output.

    Args:
        store: The store.
        versions: The versions of the store. The first is the current version.
        seconds: Duration of each load.
        budget: Workers and threads of the server.
        serve_flags: Other flags of `recollect serve`.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # a process that does nothing else
        threads = budget.threads * budget.workers
        raw_cpu, raw_p50 = pool.submit(measure_predictor, str(store.root), threads, seconds / 2).result()
    queries = sample_texts(store.open(versions[0]).instances.texts, _QUERIES)
    bodies = [json.dumps({"query": query}).encode() for query in queries]
    settings = {"threads": budget.threads, "workers": budget.workers, "cache_mb": 0, "poll_seconds": _POLL_SECONDS}
    with replica(store.root, serve_flags, **settings) as server:
        load = Load(server.address, lambda number: ("/predict", bodies[number % len(bodies)]))
        closed_loop(load, _CLIENTS, min(_WARM_SECONDS, seconds))
        light = closed_loop(load, 1, seconds)
        start, cpu_before = time.perf_counter(), cpu_seconds(server.process)
        loop_before = main_thread_seconds(server.process)
        saturated = closed_loop(load, _CLIENTS, seconds)
        qps = len(saturated) / (time.perf_counter() - start)
        served_cpu = 1e3 * (cpu_seconds(server.process) - cpu_before) / len(saturated)
        loop_cpu = 1e3 * (main_thread_seconds(server.process) - loop_before) / len(saturated)
        steady = open_loop(load, _STEADY_SHARE * qps, seconds, _CONNECTIONS)
        with swap_storm(store, versions, server.address) as swaps:
            swapping = open_loop(load, _STEADY_SHARE * qps, seconds, _CONNECTIONS)
    light_p50, light_p99 = latency_percentiles(light, 50, 99)
    return {
        "raw_cpu_ms": round(raw_cpu, 3),
        "served_cpu_ms": round(served_cpu, 3),
        "cpu_ratio": round(served_cpu / raw_cpu, 3),
        "loop_cpu_ms": round(loop_cpu, 3),
        "raw_p50_ms": round(raw_p50, 3),
        "light_p50_ms": light_p50,
        "http_p50_ms": round(light_p50 - raw_p50, 3),
        "light_p99_ms": light_p99,
        "saturated_qps": round(qps, 1),
        "steady_p99_ms": latency_percentiles(steady, 99)[0],
        "swap_p99_ms": latency_percentiles(swapping, 99)[0],
        "swaps": len(swaps),
        "swap_seconds": round(statistics.median(swaps), 3),
        "errors": count_errors(light, saturated, steady, swapping),
        "cpu": cpu_model(),
    }


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
