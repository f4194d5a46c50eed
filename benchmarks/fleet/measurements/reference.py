"""A fixed piece of work, whose time shows the present speed of the machine.

A virtual machine is not equally fast at all times, because it shares its hardware with others. Measurements that are
minutes apart can only be compared if their speeds are known.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.fleet.measurements.service_load import BODIES
from loadtests.workload import sample_texts
from service.model import open_model
from service.predictor.predictor import Predictor

_BATCHES, _QUERIES = 25, 8


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
    """Batches of queries that a predictor answers in this process, always the same ones."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._texts = sample_texts(predictor.bundle.instances.texts, BODIES)

    @classmethod
    def of(cls, store: Path) -> Reference:
        """The work of the current version of a store.

        Raises:
            ServiceError: If the store cannot be opened.
        """
        reference = cls(open_model(store, threads=1).predictor)
        reference.time_ms()  # warm up
        return reference

    def work(self, turn: int) -> float:
        """Answer one of the batches; return the milliseconds of its search."""
        return answer_batch(self._predictor, self._texts, turn % _BATCHES * _QUERIES, _QUERIES)

    def time_ms(self) -> float:
        """The mean CPU time of a batch, now."""
        start = time.thread_time()
        for turn in range(_BATCHES):
            self.work(turn)
        return 1e3 * (time.thread_time() - start) / _BATCHES


class Speed:
    """The mean time of the reference over several moments of a measurement."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._times: list[float] = []

    def measure(self) -> None:
        """Time the reference now."""
        self._times.append(self._reference.time_ms())

    @property
    def reference_ms(self) -> float:
        return float(np.mean(self._times))
