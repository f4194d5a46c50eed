"""Measure how the speed of the machine changes within seconds, while nothing else runs on it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.fleet.constants import Drift
from benchmarks.fleet.measurements.reference import BATCHES, Reference

# Number of batches of the reference in a step.
_STEP = 5


def measure_drift(store: Path, seconds: float) -> Drift:
    """Repeat the reference, and compare the time of each of its batches with the mean time of the same batch.

    Args:
        store: A store, whose current version does the work.
        seconds: Duration of the measurement. The reference is done at least once.

    Raises:
        ServiceError: If the store cannot be opened.
    """
    rounds: list[list[float]] = []
    with Reference(store) as reference:
        start = time.perf_counter()
        while not rounds or time.perf_counter() < start + seconds:
            rounds.append([reference.batch_ms(batch) for batch in range(BATCHES)])
        elapsed = time.perf_counter() - start
    times = np.array(rounds)
    relative = (times / times.mean(axis=0)).reshape(-1, _STEP).mean(axis=1)
    return Drift(step_seconds=elapsed / len(relative), slowness=(relative / relative.mean()).tolist())
