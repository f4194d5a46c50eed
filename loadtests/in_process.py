"""Measure predictors without HTTP. Times and memory are measured in separate processes that do nothing else."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtests.processes import Memory, memory
from loadtests.workload import sample_texts
from recollect.service.model import open_model
from recollect.service.options import resolve_options
from recollect.service.predictor.predictor import Predictor

_BATCH, _MEMORY_QUERIES = 32, 256


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
    return Timings(**_run_in_process("timings", store, queries, threads, seconds, pause_seconds))


def measure_memory(store: Path, versions: list[str]) -> Memory:
    """Measure the memory of a process that has opened these versions and has answered queries with each version."""
    return Memory(**_run_in_process("memory", store, *versions))


def _run_in_process(measurement: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "loadtests.in_process", measurement, *map(str, arguments)]
    printed: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return printed


def _timings(store: str, queries: str, threads: str, seconds: str, pause_seconds: str) -> Timings:
    predictor = open_model(store).predictor
    texts, duration = sample_texts(predictor.bundle.instances.texts, int(queries)), float(seconds)
    return Timings(
        cpu_ms=_cpu_ms(predictor, texts, int(threads), duration),
        alone_cpu_ms=_cpu_ms(predictor, texts, 1, duration),
        p50_ms=_p50_ms(predictor, texts, duration, 0.0),
        paced_p50_ms=_p50_ms(predictor, texts, duration, float(pause_seconds)),
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


def _memory(store: str, *versions: str) -> Memory:
    opened = [open_model(store, version).predictor for version in versions]
    for predictor in opened:
        queries = sample_texts(predictor.bundle.instances.texts, _MEMORY_QUERIES)
        for start in range(0, len(queries), _BATCH):
            predictor.predict(queries[start : start + _BATCH], resolve_options(predictor.defaults))
    return memory(os.getpid())


_MEASUREMENTS: dict[str, Callable[..., Any]] = {"timings": _timings, "memory": _memory}


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(_MEASUREMENTS[sys.argv[1]](*sys.argv[2:]))))
