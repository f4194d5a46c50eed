"""Enriched labels (`trainer.enriched`) in a memory and in a training.

`LabelKeys` are the keys of labels in a memory: they need no training and cost nothing at query time. `LabelInputs` are
the vectors of labels that an adapter reads while it is trained.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor

from recollect.trainer.data.split import LabelSets
from recollect.trainer.encoding.tokens import Inputs, VectorTable, row_numbers
from recollect.trainer.enriched import mix
from recollect.trainer.heads.adapter import Side
from recollect.trainer.sharded import Sharded

# Number of labels that are mixed at once.
_CHUNK_LABELS = 4_096

_NO_INSTANCES = np.empty(0, dtype=np.int64)


class LabelKeys:
    """Label keys that are mixed only when they are read, so that memory-mapped keys are not loaded as a whole.

    `keys[rows]` reads like an array.

    Args:
        text_keys: Vectors of the label texts, with the axes (label, dim).
        instance_keys: Vectors of the instances, with the axes (instance, dim).
        alpha: Weight of the instances, from 0 (text alone) to 1.
    """

    def __init__(
        self,
        text_keys: Float[np.ndarray, "label dim"],
        instance_keys: Float[np.ndarray, "instance dim"],
        label_sets: LabelSets,
        alpha: float,
    ) -> None:
        self.shape: tuple[int, int] = (text_keys.shape[0], text_keys.shape[1])
        self._text_keys, self._instance_keys, self.alpha = text_keys, instance_keys, alpha
        self._label_sets = label_sets

    @functools.cached_property
    def _instances(self) -> sparse.csr_matrix:
        """The transposed relevance matrix, with the axes (label, instance).

        It is computed at first use, because text keys alone do not need it.
        """
        return self._label_sets.to_csr(len(self)).T.tocsr()

    @property
    def counts(self) -> Int[np.ndarray, " label"]:
        """Number of instances of each label."""
        return np.diff(self._instances.indptr)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        texts = np.asarray(self._text_keys[rows], dtype=np.float32)
        return texts if self.alpha == 0 else mix(texts, self.sums(rows), self.alpha)

    def filled(self) -> Float[np.ndarray, "label dim"]:
        """Return all keys in one array, mixed chunk by chunk. With alpha 0 the text keys are not copied."""
        if self.alpha == 0:
            return self[:]
        filled = np.empty(self.shape, dtype=np.float32)
        for start in range(0, len(self), _CHUNK_LABELS):
            chunk = slice(start, start + _CHUNK_LABELS)
            filled[chunk] = self[chunk]
        return filled

    def sums(self, rows: slice | Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        """Return the sum of each label's instance vectors."""
        instances = self._instances[rows]
        used, columns = np.unique(instances.indices, return_inverse=True)
        compact = sparse.csr_matrix((instances.data, columns, instances.indptr), shape=(instances.shape[0], len(used)))
        sums: np.ndarray = compact @ np.asarray(self._instance_keys[used], dtype=np.float32)
        return sums


@dataclass(frozen=True)
class LabelInputs(Inputs):
    """An adapter's inputs for labels: text vectors mixed with instance vectors, without the queries of the step.

    If a query were part of the input of its own labels, the query would be near these labels for that reason alone. The
    adapter would learn to find a vector in a mean, which does not help with new queries. Each step therefore leaves its
    queries out of the inputs.

    Attributes:
        values: The relevance matrix Y, with the axes (instance, label). The row of a held-out instance is empty.
        excluded: Instances that are left out of all labels, without repetitions.
    """

    texts: Float[np.ndarray, "label dim"]
    instances: Float[np.ndarray, "instance dim"]
    values: sparse.csr_matrix
    alpha: float
    sums: Float[np.ndarray, "label dim"]
    counts: Int[np.ndarray, " label"]
    excluded: Int[np.ndarray, " excluded"] = dataclasses.field(default_factory=lambda: _NO_INSTANCES)
    side: Side = "labels"

    @classmethod
    def of(
        cls,
        texts: Float[np.ndarray, "label dim"],
        instances: Float[np.ndarray, "instance dim"],
        label_sets: LabelSets,
        alpha: float,
    ) -> LabelInputs:
        """Sum each label's instances once, for all steps. With alpha 0, no sums are needed."""
        values, counts = label_sets.to_csr(len(texts)), np.bincount(label_sets.indices, minlength=len(texts))
        sums = Sharded.of(instances).label_sums(values) if alpha else np.broadcast_to(np.float32(0), texts.shape)
        return cls(texts, instances, values, alpha, sums, counts)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: slice) -> VectorTable:
        return VectorTable(torch.from_numpy(self.vectors(rows)), self.side, rows.indices(len(self))[0])

    def batch(self, rows: Int[np.ndarray, " row"], device: str) -> tuple[Tensor, Side, Tensor]:
        """Return the unit vectors of these labels, with the axes (row, dim), then the side and the label positions."""
        return torch.from_numpy(self.vectors(rows)).to(device), self.side, row_numbers(0, rows, device)

    def excluding(self, instances: Int[np.ndarray, " excluded"]) -> LabelInputs:
        """Return inputs of the same labels that leave out these instances."""
        return dataclasses.replace(self, excluded=instances if self.alpha else _NO_INSTANCES)

    def vectors(self, rows: slice | Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        """Return the mixed vectors of these labels."""
        texts, sums = np.asarray(self.texts[rows], dtype=np.float32), self.sums[rows]
        if len(self.excluded):
            own = self.values[self.excluded][:, rows].T.tocsr()
            sums = sums - own @ np.asarray(self.instances[self.excluded], dtype=np.float32)
            sums[self.counts[rows] == np.diff(own.indptr)] = 0  # without instances the sum is 0: remove rounding errors
        return mix(texts, sums, self.alpha)
