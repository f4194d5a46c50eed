"""A fixed piece of work, whose time shows the present speed of the machine.

A virtual machine is not equally fast at all times, because it shares its hardware with others. Measurements that are
minutes apart can only be compared if their speeds are known.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.fleet.measurements.service_load import BODIES
from loadtests.workload import sample_texts
from recollect.service.model import open_model
from recollect.service.predictor.predictor import Predictor

BATCHES, _QUERIES = 25, 8
_START_SECONDS = 60.0


def answer_batch(predictor: Predictor, texts: list[str], first: int, size: int) -> float:
    """Answer texts as single queries in one batch; return the milliseconds of its search.

    Args:
        predictor: Answers them.
        texts: The texts; after the last one, the first one follows.
        first: Number of the first text of the batch.
        size: Number of texts in the batch.
    """
    options = predictor.resolve()
    requests = [([texts[row % len(texts)]], options) for row in range(first, first + size)]
    return predictor.predict_together(requests)[0].milliseconds.get("search", 0.0)


class Reference:
    """Batches of queries that a predictor answers in this process, always the same ones, alone or beside a busy core.

    Use it as a context manager: a second process keeps the other core busy when it is needed, and sleeps otherwise.
    """

    def __init__(self, store: Path) -> None:
        self._predictor = open_model(store, threads=1).predictor
        self._texts = sample_texts(self._predictor.bundle.instances.texts, BODIES)
        self.time_ms()  # warm up
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        self._other = context.Process(target=_keep_busy, args=(store, ready), daemon=True)
        self._other.start()
        if not ready.wait(_START_SECONDS):
            raise TimeoutError(
                f"{store}: expected a second process that keeps a core busy within {_START_SECONDS:.0f} s"
            )
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self._other.kill()
        self._other.join()

    def batch_ms(self, batch: int) -> float:
        """Answer the batch with this number, from 0 to `BATCHES` - 1; return its CPU time."""
        start = time.thread_time()
        answer_batch(self._predictor, self._texts, batch * _QUERIES, _QUERIES)
        return 1e3 * (time.thread_time() - start)

    def time_ms(self) -> float:
        """The mean CPU time of a batch, now."""
        return sum(self.batch_ms(batch) for batch in range(BATCHES)) / BATCHES

    def time_beside_ms(self) -> float:
        """The same while another core is busy."""
        with self.busy_core():
            return self.time_ms()

    @contextlib.contextmanager
    def busy_core(self) -> Iterator[None]:
        """Keep a core busy while the `with` block runs."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        assert self._other.pid is not None, "it has started"
        os.kill(self._other.pid, number)


def _keep_busy(store: Path, ready: multiprocessing.synchronize.Event) -> None:
    predictor = open_model(store, threads=1).predictor
    texts = sample_texts(predictor.bundle.instances.texts, BODIES)
    ready.set()
    for turn in itertools.count():
        answer_batch(predictor, texts, turn * _QUERIES, _QUERIES)


class Speed:
    """The speed of the machine, over several moments of a measurement."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._alone: list[float] = []
        self._beside: list[float] = []

    def measure(self) -> None:
        """Time the reference now."""
        self._alone.append(self._reference.time_ms())
        self._beside.append(self._reference.time_beside_ms())

    @property
    def reference_ms(self) -> float:
        """The mean time of the reference alone."""
        return float(np.mean(self._alone))

    @property
    def slowdown(self) -> float:
        """Its mean time while another core is busy, divided by that alone; at least 1."""
        return max(1.0, float(np.mean(self._beside)) / self.reference_ms)
