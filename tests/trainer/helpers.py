"""What several of the trainer's tests use: made-up vectors and label sets, and stand-ins."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from trainer.dataset import LabelSets
from trainer.ranks import Ranks


def label_sets(rows: Iterable[Collection[int]]) -> LabelSets:
    kept = [sorted(row) for row in rows]
    pointers = np.cumsum([0, *map(len, kept)], dtype=np.int64)
    return LabelSets(pointers, np.array([label for row in kept for label in row], dtype=np.int32))


def random_sets(rng: np.random.Generator, instances: int, labels: int) -> list[set[int]]:
    """Instances with none, some or all of the labels."""
    shares = rng.choice([0, 0.1, 0.4, 1], size=instances)
    return [set(np.flatnonzero(rng.random(labels) < share).tolist()) for share in shares]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_units(rng: np.random.Generator, rows: int, dim: int = 8) -> np.ndarray:
    return unit(rng.standard_normal((rows, dim)))


def files(folder: Path) -> dict[str, bytes]:
    """All that a folder holds."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class OwnShare(Ranks):
    """One of several processes, which keeps its part to itself."""

    def join_arrays(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        return part

    def collect(self, part: np.ndarray, rows: int, device: str) -> np.ndarray:
        return part


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now
