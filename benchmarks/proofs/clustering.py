"""NGAME's clustering, at the size of half a million vectors: in little memory beside them, and clusters are found.

The vectors lie about planted centres, which lie about topics, in a file that is mapped.
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

from trainer.clustering import balanced_clusters

# Memory beside the vectors, which take 768 MB in float32: some integers a row, and a stretch of vectors.
MOST_BYTES = 100_000_000
# What clusters must gain over random ones, as a share of what the planted ones gain.
LEAST_GAIN = 0.7
_CENTRES_PER_TOPIC = 32
# Short stretches: what is freed between the measurements, and used again, is not measured.
_STRETCH_ROWS, _PAUSE_SECONDS = 1_024, 0.005


@dataclass(frozen=True)
class Size:
    """How many vectors, of how many numbers, about how many centres: as many clusters are made."""

    rows: int = 500_000
    dim: int = 384
    centres: int = 2_048


@dataclass(frozen=True)
class Clustering:
    """What was measured.

    Attributes:
        seconds: Of the clustering alone.
        peak_bytes: The most memory it took, without the mapped file.
        tightness: Mean cosine of a vector to its cluster's mean.
        planted: The same of the planted clusters.
        random: The same of random clusters of the same sizes.
    """

    seconds: float
    peak_bytes: int
    tightness: float
    planted: float
    random: float

    @property
    def gain(self) -> float:
        """How far from random to planted clusters the found ones are."""
        return (self.tightness - self.random) / (self.planted - self.random)


def prove(size: Size = Size(), seed: int = 0) -> Clustering:
    """Clusters planted vectors; Linux only, where a process tells what it holds beside mapped files."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vectors.npy")
        planted = _plant(path, size, random)
        vectors = np.load(path, mmap_mode="r")
        rows = np.arange(size.rows)
        balanced_clusters(vectors, rows[:1_000], 10, random)  # what any first call takes
        with _peak_above() as peak:
            start = time.monotonic()
            found = balanced_clusters(vectors, rows, size.centres, random)
            seconds = time.monotonic() - start
        return Clustering(
            seconds,
            peak[0],
            *(_tightness(vectors, clusters) for clusters in (found, planted, random.permutation(found))),
        )


def _plant(path: Path, size: Size, random: np.random.Generator) -> Int[np.ndarray, " row"]:
    """Writes unit vectors about centres about random topics; gives the centre of each."""
    topics = _directions(random, -(-size.centres // _CENTRES_PER_TOPIC), size.dim)
    topic = np.arange(size.centres) // _CENTRES_PER_TOPIC
    centres = _unit(topics[topic] + _directions(random, size.centres, size.dim))
    own = random.permutation(np.arange(size.rows) % size.centres)
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (size.rows, size.dim))
    for start in range(0, size.rows, _STRETCH_ROWS):
        centre = centres[own[start : start + _STRETCH_ROWS]]
        vectors[start : start + _STRETCH_ROWS] = _unit(centre + _directions(random, *centre.shape))
    return own


def _tightness(vectors: Float[np.ndarray, "row dim"], clusters: Int[np.ndarray, " row"]) -> float:
    """A cluster's summed cosines to its mean are the length of its sum."""
    sums = np.zeros((clusters.max() + 1, vectors.shape[1]), dtype=np.float32)
    for start in range(0, len(vectors), _STRETCH_ROWS):
        np.add.at(sums, clusters[start : start + _STRETCH_ROWS], vectors[start : start + _STRETCH_ROWS])
    return float(np.linalg.norm(sums, axis=1).sum() / len(vectors))


@contextlib.contextmanager
def _peak_above() -> Iterator[list[int]]:
    """Watches what this process holds beside mapped files; the list's one entry is the most above the beginning."""
    before, peak, done = _anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(_PAUSE_SECONDS):
            peak[0] = max(peak[0], _anonymous_bytes() - before)

    thread = threading.Thread(target=watch)
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
