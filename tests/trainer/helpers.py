"""What several of the trainer's tests use: made-up vectors and label sets, and stand-ins."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch import nn

from trainer.data.split import LabelSets
from trainer.heads.adapter import Adapter
from trainer.heads.head import Head
from trainer.methods import METHODS, Options
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


def learned_adapter(dim: int, hidden: int, dropout: float = 0.1, std: float = 1.0) -> Adapter:
    """One that changes vectors, and has a head of its own for either side."""
    adapter = Adapter(dim, hidden, dropout)
    nn.init.normal_(adapter.queries.narrow.weight, std=std)
    nn.init.normal_(adapter.labels.narrow.weight, std=std)
    return adapter


def learned_head(method: str, dim: int, labels: int, values: sparse.csr_matrix | None = None) -> Head | None:
    """What a method learns above the encoder, far from where it starts.

    Args:
        method: Its name.
        dim: Size of a vector.
        labels: How many there are.
        values: Y, "instance label"; unset: some instances a label, but for the first, which has none.
    """
    make = METHODS[method].head
    if make is None:
        return None
    head = make(dim, labels, Options(prototype=("text", "free", "centroid"), bank=max(1, labels // 4)))
    if values is None:
        values = label_sets([1 + row % (labels - 1)] for row in range(3 * labels)).to_csr(labels)
    rng = np.random.default_rng(8)
    head.start(random_units(rng, labels, dim), random_units(rng, values.shape[0], dim), values, seed=0)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    return head


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
