"""The gradient cache's promise: memory grows with the pool by a vector and a gradient a label, and hardly more.

Each pool size runs in a process of its own, whose peak memory is read when it ends.
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
from trainer.batches import Batches
from trainer.distributed import ALONE
from trainer.gradient_cache import Embedder
from trainer.methods import METHODS
from trainer.objective import Objective

_LENGTH, _QUERIES = 16, 256
_MICRO_TOKENS = 2_048

# Numbers, for each dimension, that a label may add: its vector and its gradient, and less than one for its row number,
# its part of a random state, and what the allocator wastes. A third array as large as all vectors is too much.
MOST_ADDED = 2.75
# What is larger goes back to the system at once: the peak is to be that of what was held, not of gaps between it.
_RETURNED_BYTES = 1 << 16


@dataclass(frozen=True)
class Peak:
    """Memory of one step over a pool of labels.

    Attributes:
        labels: Pool size.
        cached_bytes: What the step added to the process's peak, with the gradient cache.
        direct_bytes: The same when every graph is kept; None where that was not tried.
    """

    labels: int
    cached_bytes: int
    direct_bytes: int | None


def prove(pools: tuple[int, ...] = (1_000, 4_000, 16_000, 64_000), most_direct: int = 4_000) -> list[Peak]:
    """The peak for each pool size; kept graphs only up to `most_direct` labels, as they soon fill a machine."""
    return [
        Peak(labels, _in_own_process(labels, True), _in_own_process(labels, False) if labels <= most_direct else None)
        for labels in pools
    ]


def added(peaks: list[Peak]) -> float:
    """The numbers, for each dimension, that each label added between the two largest pools."""
    small, large = peaks[-2:]
    return (large.cached_bytes - small.cached_bytes) / (large.labels - small.labels) / (4 * DIM)


def _in_own_process(labels: int, cache: bool) -> int:
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(_RETURNED_BYTES))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=(labels, cache, sender))
    process.start()
    sender.close()
    try:
        added: int = receiver.recv()
    except EOFError:
        raise RuntimeError(f"the process that measured {labels:,} labels ended before it answered") from None
    process.join()
    return added


def _measure(labels: int, cache: bool, sender: Connection) -> None:
    random = np.random.default_rng(0)
    queries, pool = (Texts(random_texts(random, rows, _LENGTH)).table() for rows in (_QUERIES, labels))
    sets = label_sets([[row] for row in random.integers(labels, size=_QUERIES).tolist()])
    embedder = Embedder(tiny_encoder(0, _LENGTH), "cpu", False, _MICRO_TOKENS, 2**31, cache)
    objective = Objective(METHODS["dexml"], METHODS["dexml"].options(), 0.05, embedder, queries, pool, ALONE)
    batches = Batches(sets, labels, np.arange(_QUERIES), _QUERIES, 0, None, 0)
    small = Objective(METHODS["dexml"], METHODS["dexml"].options(), 0.05, embedder, queries, pool[:64], ALONE)
    few = label_sets([[row % 64] for row in range(_QUERIES)])
    small.backward(Batches(few, 64, np.arange(_QUERIES), _QUERIES, 0, None, 0).at(0, None))  # what any step takes
    before = _peak()
    objective.backward(batches.at(0, None))
    sender.send(_peak() - before)


def _peak() -> int:
    status = Path("/proc/self/status")
    if status.is_file():  # Linux's ru_maxrss begins with what the parent held
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
