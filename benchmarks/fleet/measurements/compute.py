"""Measure a predictor in this process, on one thread: batches, lengths of texts, and a busy second core.

Times are CPU times, because other programs change the time that passes. All kinds of work are measured in turns, so
that a change of the machine's speed changes all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.fleet.constants import Compute
from benchmarks.fleet.measurements.reference import Reference, Speed, answer_batch
from benchmarks.fleet.measurements.service_load import BODIES
from loadtests.workload import sample_texts
from service.model import open_model
from service.predictor.encoder import Tokens
from service.predictor.predictor import Predictor

_SIZES = (1, 2, 4, 8, 16, 32)
_TOKENS = (8, 16, 32, 64, 128)
# Number of measurements of the slowdown by a busy core.
_MOMENTS = 6

# A kind of work, which gets the number of its turn. It returns the milliseconds of its search, if there is one.
Work = Callable[[int], float]


def measure_compute(store: Path, seconds: float) -> Compute:
    """Measure the current version of a store.

    Args:
        store: The store.
        seconds: Duration of the measurement.

    Raises:
        ServiceError: If the store cannot be opened.
    """
    predictor = open_model(store, threads=1).predictor
    texts = sample_texts(predictor.bundle.instances.texts, BODIES)
    tokens = predictor.encoder.tokenise(texts).ids
    batches = [_batch(predictor, texts, size) for size in _SIZES]
    encodings = [_encoding(predictor, tokens, length) for length in _TOKENS]
    with Reference(store) as reference:
        work = [*batches, *encodings, reference.work]
        _in_turns(work, 0)  # warm up
        times, searches = _in_turns(work, seconds)
        speed = Speed(reference)
        for _ in range(_MOMENTS):
            speed.measure()
    medians = [float(np.median(each)) for each in times]
    info, index, counts = predictor.manifest.encoder, predictor.manifest.index, predictor.manifest.counts
    return Compute(
        encoder=f"{info.name}, {info.precision}",
        memory=f"{counts.instances:,} instances ({index.instances.factory}), {counts.labels:,} labels "
        f"({index.labels.factory}), b = {predictor.defaults.top_b}",
        tokens=float(np.mean([len(ids) for ids in tokens])),
        is_faster_together=predictor.is_faster_together,
        reference_ms=float(np.mean(times[-1])),
        batch_ms={size: np.percentile(each, range(101)).tolist() for size, each in zip(_SIZES, times, strict=False)},
        search_ms={size: float(np.median(each)) for size, each in zip(_SIZES, searches, strict=False)},
        encode_ms=dict(zip(_TOKENS, medians[len(_SIZES) : -1], strict=True)),
        slowdown=speed.slowdown,
    )


def _in_turns(work: list[Work], seconds: float) -> tuple[list[list[float]], list[list[float]]]:
    """Do all work in turns, at least once; return the CPU milliseconds of each work and those of its search."""
    times, searches = [list[float]() for _ in work], [list[float]() for _ in work]
    until = time.perf_counter() + seconds
    while not times[0] or time.perf_counter() < until:
        for number, each in enumerate(work):
            start = time.thread_time()
            searches[number].append(each(len(times[number]) * len(work) + number))
            times[number].append(1e3 * (time.thread_time() - start))
    return times, searches


def _batch(predictor: Predictor, texts: list[str], size: int) -> Work:
    """Answer single queries in batches of this size."""
    return lambda turn: answer_batch(predictor, texts, turn * size, size)


def _encoding(predictor: Predictor, tokens: list[list[int]], length: int) -> Work:
    """Encode texts with exactly this number of tokens, made from the tokens of several texts."""

    def work(turn: int) -> float:
        joined = [token for row in range(length) for token in tokens[(turn + row) % len(tokens)]]
        predictor.encoder.encode(Tokens([joined[:length]], [False]))
        return 0.0

    return work
