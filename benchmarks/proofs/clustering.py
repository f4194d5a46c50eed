"""NGAME's balanced clustering of half a million vectors finds the planted clusters in little memory.

The vectors are random points around planted centres, and the centres are random points around topics. They are stored
in a memory-mapped file.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from recollect.trainer.sharded import Sharded
from recollect.trainer.training.clustering import balanced_clusters

# Limit of the memory without the vectors (768 MB in float32). The memory holds some integers for each row, and a chunk
# of vectors.
MAX_BYTES = 100_000_000
# Smallest gain over random clusters, as a share of the gain of the planted clusters.
MIN_GAIN = 0.7
_CENTRES_PER_TOPIC = 32
# Number of rows in one chunk. Small chunks make the measurement more exact: it does not see memory that is freed and
# reused between two samples.
_CHUNK_ROWS, _PAUSE_SECONDS = 1_024, 0.005


@dataclass(frozen=True)
class Size:
    """Number of vectors, their dimension, and the number of planted centres, which is also the number of clusters."""

    rows: int = 500_000
    dim: int = 384
    centres: int = 2_048


@dataclass(frozen=True)
class Clustering:
    """The measurements.

    Attributes:
        seconds: Duration of the clustering.
        peak_bytes: Peak memory of the clustering, without the mapped file.
        tightness: Mean cosine of the vectors to the means of their clusters.
        planted: Tightness of the planted clusters.
        random: Tightness of random clusters of the same sizes.
    """

    seconds: float
    peak_bytes: int
    tightness: float
    planted: float
    random: float

    @property
    def gain(self) -> float:
        """0 if the clusters are as tight as random clusters, 1 if they are as tight as the planted ones."""
        return (self.tightness - self.random) / (self.planted - self.random)


def prove(size: Size = Size(), seed: int = 0) -> Clustering:
    """Cluster vectors around planted centres.

    This works only on Linux, which reports the memory without mapped files.
    """
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vectors.npy")
        planted = _write_planted_vectors(path, size, random)
        vectors = Sharded.of(np.load(path, mmap_mode="r"))
        rows = np.arange(size.rows)
        balanced_clusters(vectors, rows[:1_000], 10, random)  # the first call allocates memory that later calls reuse
        with _measure_peak() as peak:
            start = time.monotonic()
            found = balanced_clusters(vectors, rows, size.centres, random)
            seconds = time.monotonic() - start
        return Clustering(
            seconds,
            peak[0],
            *(_tightness(vectors.own, clusters) for clusters in (found, planted, random.permutation(found))),
        )


def _write_planted_vectors(path: Path, size: Size, random: np.random.Generator) -> Int[np.ndarray, " row"]:
    """Write the planted unit vectors; return the centre of each vector."""
    topics = _directions(random, -(-size.centres // _CENTRES_PER_TOPIC), size.dim)
    topic = np.arange(size.centres) // _CENTRES_PER_TOPIC
    centres = _unit(topics[topic] + _directions(random, size.centres, size.dim))
    own = random.permutation(np.arange(size.rows) % size.centres)
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (size.rows, size.dim))
    for start in range(0, size.rows, _CHUNK_ROWS):
        centre = centres[own[start : start + _CHUNK_ROWS]]
        vectors[start : start + _CHUNK_ROWS] = _unit(centre + _directions(random, *centre.shape))
    return own


def _tightness(vectors: Float[np.ndarray, "row dim"], clusters: Int[np.ndarray, " row"]) -> float:
    """Mean cosine of the vectors to the means of their clusters.

    The sum of the cosines of a cluster is the length of the sum of its vectors.
    """
    sums = np.zeros((clusters.max() + 1, vectors.shape[1]), dtype=np.float32)
    for start in range(0, len(vectors), _CHUNK_ROWS):
        np.add.at(sums, clusters[start : start + _CHUNK_ROWS], vectors[start : start + _CHUNK_ROWS])
    return float(np.linalg.norm(sums, axis=1).sum() / len(vectors))


@contextlib.contextmanager
def _measure_peak() -> Iterator[list[int]]:
    """Measure the memory of this process without mapped files.

    At the end, the yielded list holds one number: the increase of the peak.
    """
    before, peak, done = _anonymous_bytes(), [0], threading.Event()

    def sample() -> None:
        while not done.wait(_PAUSE_SECONDS):
            peak[0] = max(peak[0], _anonymous_bytes() - before)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("RssAnon:")).split()[1]) * 1024


def _directions(random: np.random.Generator, rows: int, dim: int) -> Float[np.ndarray, "row dim"]:
    return _unit(random.standard_normal((rows, dim), dtype=np.float32))


def _unit(vectors: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row dim"]:
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit
