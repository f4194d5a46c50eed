"""Measure a predictor in this process, on one thread: batches, lengths of texts, and a busy second core.

Times are CPU times, because other programs change the time that passes. All kinds of work are measured in turns, so
that a change of the machine's speed changes all of them alike. All sizes of batches are measured with the same texts:
the queries of the loads, in the same order.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.fleet.constants import Compute
from benchmarks.fleet.measurements.reference import Reference, Speed, answer_batch
from benchmarks.fleet.measurements.service_load import BODIES
from loadtests.workload import sample_texts
from recollect.service.model import open_model
from recollect.service.predictor.encoder import Tokens
from recollect.service.predictor.predictor import Predictor

_SIZES = (1, 2, 4, 8, 16, 32)
_TOKENS = (8, 16, 32, 64, 128)
# Number of measurements of the slowdown by a busy core.
_MOMENTS = 6

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Times:
    """CPU times in milliseconds.

    Attributes:
        batches: Times of batches, by their number of queries.
        queries: Times of batches of one query, by the number of its text.
        searches: The parts of the times in `batches` in which the keys are searched.
        encodings: Times to encode a text, by its number of tokens.
        reference: Times of the reference. Around the loads of the service too, it runs without other work in between.
    """

    batches: dict[int, list[float]] = field(default_factory=lambda: {size: [] for size in _SIZES})
    queries: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    searches: dict[int, list[float]] = field(default_factory=lambda: {size: [] for size in _SIZES})
    encodings: dict[int, list[float]] = field(default_factory=lambda: {length: [] for length in _TOKENS})
    reference: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Work:
    """The measured work: after `turns` turns, batches of each size have answered each text once."""

    predictor: Predictor
    texts: list[str]
    tokens: list[list[int]]
    reference: Reference

    @property
    def turns(self) -> int:
        return math.ceil(len(self.texts) / _SIZES[-1])

    def do_all(self, times: _Times) -> None:
        """Do the work of all turns. Time the reference after each turn."""
        for turn in range(self.turns):
            self.do(turn, times)
            times.reference.append(self.reference.time_ms())

    def do(self, turn: int, times: _Times) -> None:
        """Answer the texts of a turn in batches of each size, and encode texts."""
        for size in _SIZES:
            for first in range(turn * _SIZES[-1], (turn + 1) * _SIZES[-1], size):
                search_ms, milliseconds = _timed(partial(answer_batch, self.predictor, self.texts, first, size))
                times.searches[size].append(search_ms)
                times.batches[size].append(milliseconds)
                if size == 1:
                    times.queries[first % len(self.texts)].append(milliseconds)
        for length in _TOKENS:
            tokens = Tokens([self._joined(turn, length)], [False])
            times.encodings[length].append(_timed(partial(self.predictor.encoder.encode, tokens))[1])

    def _joined(self, first: int, length: int) -> list[int]:
        """The first `length` tokens of the concatenated texts, from text `first` on."""
        return [token for row in range(length) for token in self.tokens[(first + row) % len(self.tokens)]][:length]


def measure_compute(store: Path, seconds: float) -> Compute:
    """Measure the current version of a store.

    Args:
        store: The store.
        seconds: Duration of the measurement. All texts are measured at least once, and all equally often.

    Raises:
        ServiceError: If the store cannot be opened.
    """
    predictor = open_model(store, threads=1).predictor
    texts = sample_texts(predictor.bundle.instances.texts, BODIES)
    tokens = predictor.encoder.tokenise(texts).ids
    with Reference(store) as reference:
        work = _Work(predictor, texts, tokens, reference)
        work.do(0, _Times())  # warm up
        times, until = _Times(), time.perf_counter() + seconds
        while not times.reference or time.perf_counter() < until:
            work.do_all(times)
        speed = Speed(reference)
        for _ in range(_MOMENTS):
            speed.measure()
    info, index, counts = predictor.manifest.encoder, predictor.manifest.index, predictor.manifest.counts
    return Compute(
        encoder=f"{info.name}, {info.precision}",
        memory=f"{counts.instances:,} instances ({index.instances.factory}), {counts.labels:,} labels "
        f"({index.labels.factory}), b = {predictor.defaults.top_b}",
        tokens=float(np.mean([len(ids) for ids in tokens])),
        is_faster_together=predictor.is_faster_together,
        reference_ms=float(np.mean(times.reference)),
        batch_ms={size: float(np.mean(each)) for size, each in times.batches.items()},
        query_ms=[float(np.mean(times.queries[row])) for row in range(len(texts))],
        search_ms={size: float(np.mean(each)) for size, each in times.searches.items()},
        encode_ms={length: float(np.median(each)) for length, each in times.encodings.items()},
        slowdown=speed.slowdown,
    )


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Do some work; return its result and its CPU milliseconds."""
    start = time.thread_time()
    return work(), 1e3 * (time.thread_time() - start)
