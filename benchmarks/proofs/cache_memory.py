"""Memory of the gradient cache: each label in the pool needs memory for its vector, its gradient and little more.

Each pool size is measured in a new process. The measurement is the peak memory of the process at its end.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.proofs.tiny import DIM, Texts, label_sets, random_texts, tiny_encoder
from recollect.trainer.distributed import ALONE
from recollect.trainer.methods import METHODS
from recollect.trainer.training.batches import Batches
from recollect.trainer.training.gradient_cache import Embedder
from recollect.trainer.training.objective import Objective

_LENGTH, _QUERIES = 16, 256
_MICRO_TOKENS = 2_048

# Limit of the numbers that a label may add for each dimension: 2 numbers for its vector and its gradient, and less than
# 1 for its row number, its part of a random state, and the allocator. A third array as large as all vectors exceeds the
# limit.
MAX_NUMBERS_PER_LABEL = 2.75
# The allocator returns larger blocks to the system at once, so that the peak does not include freed blocks.
_MMAP_THRESHOLD_BYTES = 1 << 16


@dataclass(frozen=True)
class Peak:
    """Memory of one training step over a pool of labels.

    Attributes:
        labels: Number of labels that each query is compared with.
        cached_bytes: Increase of the peak memory with the gradient cache.
        direct_bytes: Increase of the peak memory if all autograd graphs are kept; None if not measured.
    """

    labels: int
    cached_bytes: int
    direct_bytes: int | None


def prove(pools: tuple[int, ...] = (1_000, 4_000, 16_000, 64_000), most_direct: int = 4_000) -> list[Peak]:
    """Measure the process's peak memory for each number of labels in the pool of a loss.

    Keeping all graphs needs much memory, so this is measured only up to `most_direct` labels.
    """
    return [
        Peak(
            labels,
            _measure_in_process(labels, True),
            _measure_in_process(labels, False) if labels <= most_direct else None,
        )
        for labels in pools
    ]


def numbers_per_label(peaks: list[Peak]) -> float:
    """Return how many numbers each label adds for each dimension, from the difference between the two largest pools."""
    small, large = peaks[-2:]
    return (large.cached_bytes - small.cached_bytes) / (large.labels - small.labels) / (4 * DIM)


def _measure_in_process(labels: int, cache: bool) -> int:
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(_MMAP_THRESHOLD_BYTES))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=(labels, cache, sender))
    process.start()
    sender.close()
    try:
        increase: int = receiver.recv()
    except EOFError:
        raise RuntimeError(f"the process that measures {labels:,} labels ended without a result") from None
    process.join()
    return increase


def _measure(labels: int, cache: bool, sender: Connection) -> None:
    random = np.random.default_rng(0)
    queries, pool = (Texts(random_texts(random, rows, _LENGTH)).table() for rows in (_QUERIES, labels))
    sets = label_sets([[row] for row in random.integers(labels, size=_QUERIES).tolist()])
    embedder = Embedder(tiny_encoder(0, _LENGTH), "cpu", False, _MICRO_TOKENS, 2**31, cache)
    objective = Objective(METHODS["dexml"], METHODS["dexml"].options(), 0.05, embedder, queries, pool, ALONE)
    batches = Batches(sets, labels, np.arange(_QUERIES), _QUERIES, 0, None, 0)
    small = Objective(METHODS["dexml"], METHODS["dexml"].options(), 0.05, embedder, queries, pool[:64], ALONE)
    few = label_sets([[row % 64] for row in range(_QUERIES)])
    small.backward(
        Batches(few, 64, np.arange(_QUERIES), _QUERIES, 0, None, 0).at(0, None)
    )  # the first step allocates memory that every step needs
    before = _peak_bytes()
    objective.backward(batches.at(0, None))
    sender.send(_peak_bytes() - before)


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux, ru_maxrss includes the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # KiB on Linux
