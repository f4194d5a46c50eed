"""Helpers of the trainer's tests: random vectors and label sets, trained adapters and heads, and fakes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import nn

from recollect.trainer.data.split import LabelSets, Split
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.head import Head
from recollect.trainer.methods import METHODS, MethodOptions
from recollect.trainer.sharded import Sharded


def label_sets(rows: Iterable[Collection[int]]) -> LabelSets:
    kept = [sorted(row) for row in rows]
    pointers = np.cumsum([0, *map(len, kept)], dtype=np.int64)
    return LabelSets(pointers, np.array([label for row in kept for label in row], dtype=np.int32))


def label_lists(split: Split) -> list[list[int]]:
    """Return the labels of each instance."""
    return [row.tolist() for row in np.split(split.labels.indices, split.labels.indptr[1:-1])]


def random_sets(rng: np.random.Generator, instances: int, labels: int) -> list[set[int]]:
    """Draw the label sets of instances: some instances have no label, some have all labels."""
    shares = rng.choice([0, 0.1, 0.4, 1], size=instances)
    return [set(np.flatnonzero(rng.random(labels) < share).tolist()) for share in shares]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_units(rng: np.random.Generator, rows: int, dim: int = 8) -> np.ndarray:
    return unit(rng.standard_normal((rows, dim)))


def learned_adapter(dim: int, hidden: int, dropout: float = 0.1, std: float = 1.0) -> Adapter:
    """Make an adapter that changes vectors, differently for queries and labels."""
    adapter = Adapter(dim, hidden, dropout)
    nn.init.normal_(adapter.queries.narrow.weight, std=std)
    nn.init.normal_(adapter.labels.narrow.weight, std=std)
    return adapter


def learned_head(
    method: str, dim: int, labels: int, values: sparse.csr_matrix | None = None, **given: Any
) -> Head | None:
    """Make the head of a method with random weights. None if the method has no head.

    Args:
        method: Name of the method.
        dim: Size of a vector.
        labels: Number of labels.
        values: The relevance matrix Y, with the axes (instance, label). None: the first label has no instances, and
            each other label has some.
        given: Options of the method.
    """
    own = {"bank": max(1, labels // 4)} if method == "prime" else {}
    head = METHODS[method].make_head(dim, labels, options(method, **own | given))
    if head is None:
        return None
    if values is None:
        values = label_sets([1 + row % (labels - 1)] for row in range(3 * labels)).to_csr(labels)
    rng = np.random.default_rng(8)
    head.start(random_units(rng, labels, dim), Sharded.of(random_units(rng, values.shape[0], dim)), values, seed=0)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.3 * torch.randn(weight.shape))
    return head


def options(method: str, **given: Any) -> MethodOptions:
    """Make the options of a method. Options that are not given have their defaults."""
    return METHODS[method].options(**given)


def files(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Clock:
    """A clock that stands still until a test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now
