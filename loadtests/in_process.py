"""Measure a predictor without HTTP, in a separate process that does nothing else."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtests.workload import sample_texts
from recollect.service.model import open_model
from recollect.service.options import resolve_options
from recollect.service.predictor.predictor import Predictor

_BATCH = 32


@dataclass(frozen=True)
class Timings:
    """Times in milliseconds for each query.

    Attributes:
        cpu_ms: CPU time to tokenise, encode, search and combine in batches, on several threads. Threads share caches
            and memory bandwidth, so a query costs more CPU time than on one thread.
        alone_cpu_ms: Like `cpu_ms`, on one thread.
        p50_ms: Median latency of single queries, when each query directly follows the query before.
        paced_p50_ms: Like `p50_ms`, with a pause before each query. A machine is slower after a pause.
    """

    cpu_ms: float
    alone_cpu_ms: float
    p50_ms: float
    paced_p50_ms: float


def measure_timings(store: Path, queries: int, threads: int, seconds: float, pause_seconds: float) -> Timings:
    """Measure the times of the current version of a store.

    Args:
        store: A valid bundle store.
        queries: Number of queries, which are texts of the version's memory.
        threads: Number of threads that answer batches.
        seconds: Duration of each measurement.
        pause_seconds: Pause between paced queries.
    """
    arguments = map(str, (store, queries, threads, seconds, pause_seconds))
    command = [sys.executable, "-m", "loadtests.in_process", *arguments]
    return Timings(**json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def _timings(store: str, queries: int, threads: int, seconds: float, pause_seconds: float) -> Timings:
    predictor = open_model(store).predictor
    texts = sample_texts(predictor.bundle.instances.texts, queries)
    return Timings(
        cpu_ms=_cpu_ms(predictor, texts, threads, seconds),
        alone_cpu_ms=_cpu_ms(predictor, texts, 1, seconds),
        p50_ms=_p50_ms(predictor, texts, seconds, 0.0),
        paced_p50_ms=_p50_ms(predictor, texts, seconds, pause_seconds),
    )


def _cpu_ms(predictor: Predictor, queries: list[str], threads: int, seconds: float) -> float:
    options, numbers = resolve_options(predictor.defaults), itertools.count()
    answered: list[int] = []
    before, until = time.process_time(), time.perf_counter() + seconds

    def work() -> None:
        while time.perf_counter() < until:
            start = next(numbers) * _BATCH % len(queries)
            batch = queries[start : start + _BATCH]
            predictor.predict(batch, options)
            answered.append(len(batch))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 1e3 * (time.process_time() - before) / sum(answered)


def _p50_ms(predictor: Predictor, queries: list[str], seconds: float, pause_seconds: float) -> float:
    latencies: list[float] = []
    options, until = resolve_options(predictor.defaults), time.perf_counter() + seconds
    while time.perf_counter() < until:
        time.sleep(pause_seconds)
        start = time.perf_counter()
        predictor.predict([queries[len(latencies) % len(queries)]], options)
        latencies.append(time.perf_counter() - start)
    return 1e3 * float(np.median(latencies))


if __name__ == "__main__":
    store, queries, threads, seconds, pause_seconds = sys.argv[1:]
    timings = _timings(store, int(queries), int(threads), float(seconds), float(pause_seconds))
    print(json.dumps(dataclasses.asdict(timings)))
