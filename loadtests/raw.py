"""What answering costs without HTTP: a process of its own that asks one predictor as the server asks it."""

from __future__ import annotations

import argparse
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

from loadtests.workload import spread
from service.options import resolve_options
from service.predictor.predictor import Predictor
from service.store.store import Store

_BATCH = 32


@dataclass(frozen=True)
class Raw:
    """Milliseconds a query.

    Attributes:
        cpu_ms: CPU to tokenise, encode, search and combine, in batches, with so many threads at work. Cores share
            caches and memory: a query costs more CPU while another is answered beside it.
        alone_cpu_ms: The same with one thread.
        p50_ms: Time of a query alone, one right after the other.
        paced_p50_ms: The same with rests between: a machine that rests is slower.
    """

    cpu_ms: float
    alone_cpu_ms: float
    p50_ms: float
    paced_p50_ms: float


def measure(store: Path, queries: int, threads: int, seconds: float, rest_seconds: float) -> Raw:
    """Measure a store's current version, in a process that does nothing else.

    Args:
        store: The store, which is known to open.
        queries: How many texts of its memory are asked.
        threads: Batches at work at once.
        seconds: How long each figure is measured.
        rest_seconds: Between two queries that are paced.
    """
    arguments = [str(argument) for argument in (store, queries, threads, seconds, rest_seconds)]
    done = subprocess.run([sys.executable, "-m", "loadtests.raw", *arguments], stdout=subprocess.PIPE, check=True)
    return Raw(**json.loads(done.stdout))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, of in {"store": Path, "queries": int, "threads": int, "seconds": float, "rest_seconds": float}.items():
        parser.add_argument(name, type=of)
    given = parser.parse_args(arguments)
    opened = Store(given.store)
    predictor = Predictor.open(opened.open(opened.require_current()), threads=1)
    queries = spread(predictor.bundle.instance_texts, given.queries)
    measured = Raw(
        cpu_ms=_cpu_ms(predictor, queries, given.threads, given.seconds),
        alone_cpu_ms=_cpu_ms(predictor, queries, 1, given.seconds),
        p50_ms=_p50_ms(predictor, queries, given.seconds, 0.0),
        paced_p50_ms=_p50_ms(predictor, queries, given.seconds, given.rest_seconds),
    )
    print(json.dumps(dataclasses.asdict(measured)))


def _cpu_ms(predictor: Predictor, queries: list[str], threads: int, seconds: float) -> float:
    options, numbers = resolve_options(predictor.defaults), itertools.count()
    asked: list[int] = []
    before, until = time.process_time(), time.perf_counter() + seconds

    def work() -> None:
        while time.perf_counter() < until:
            start = next(numbers) * _BATCH % len(queries)
            batch = queries[start : start + _BATCH]
            predictor.predict(batch, options)
            asked.append(len(batch))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 1e3 * (time.process_time() - before) / sum(asked)


def _p50_ms(predictor: Predictor, queries: list[str], seconds: float, rest_seconds: float) -> float:
    spent: list[float] = []
    options, until = resolve_options(predictor.defaults), time.perf_counter() + seconds
    while time.perf_counter() < until:
        time.sleep(rest_seconds)
        start = time.perf_counter()
        predictor.predict([queries[len(spent) % len(queries)]], options)
        spent.append(time.perf_counter() - start)
    return 1e3 * float(np.median(spent))


if __name__ == "__main__":
    main(sys.argv[1:])
