"""What an adapter reads of a label: its text's vector mixed with its instances', those of the step's batch left out.

A query that sat in the inputs of its own labels would be near them for that alone: the adapter would learn to find a
vector in a mean, which helps no query that comes later. So a step's labels are read as if its batch were not there.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor

from trainer.data.split import LabelSets
from trainer.heads.adapter import Side
from trainer.label_keys import LabelKeys, mix
from trainer.tokens import VectorTable, row_numbers

_NOBODY = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class LabelInputs:
    """A table with a row a label, each mixed when it is read.

    Attributes:
        texts: The label texts' vectors.
        instances: The instances' vectors.
        values: Y, "instance label"; empty where an instance is held out.
        alpha: Weight of the instances.
        sums: The sum of each label's instance vectors.
        counts: How many instances each label has.
        left_out: Instances that are read out of every label, each named once.
    """

    texts: Float[np.ndarray, "label dim"]
    instances: Float[np.ndarray, "instance dim"]
    values: sparse.csr_matrix
    alpha: float
    sums: Float[np.ndarray, "label dim"]
    counts: Int[np.ndarray, " label"]
    left_out: Int[np.ndarray, " left_out"] = dataclasses.field(default_factory=lambda: _NOBODY)
    side: ClassVar[Side] = "labels"

    @classmethod
    def of(
        cls,
        texts: Float[np.ndarray, "label dim"],
        instances: Float[np.ndarray, "instance dim"],
        label_sets: LabelSets,
        alpha: float,
    ) -> LabelInputs:
        """Add up each label's instances, once."""
        keys = LabelKeys(texts, instances, label_sets, alpha)
        return cls(texts, instances, label_sets.to_csr(len(texts)), alpha, keys.all_sums(), keys.counts)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: slice) -> VectorTable:
        return VectorTable(torch.from_numpy(self.vectors(rows)), self.side, rows.indices(len(self))[0])

    @property
    def lengths(self) -> Int[np.ndarray, " row"]:
        return np.ones(len(self), dtype=np.int64)

    def lengths_of(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        return np.ones(len(rows), dtype=np.int64)

    def batch(self, rows: Int[np.ndarray, " row"], device: str) -> tuple[Tensor, Side, Tensor]:
        """Unit vectors of these labels, "row dim"; whose they are, and which."""
        return torch.from_numpy(self.vectors(rows)).to(device), self.side, row_numbers(0, rows, device)

    def excluding(self, instances: Int[np.ndarray, " left_out"]) -> LabelInputs:
        """The same labels as if these instances were not there."""
        return dataclasses.replace(self, left_out=instances if self.alpha else _NOBODY)

    def vectors(self, rows: slice | Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        """What the adapter reads of these labels."""
        texts, sums = np.asarray(self.texts[rows], dtype=np.float32), self.sums[rows]
        if len(self.left_out):
            own = self.values[self.left_out][:, rows].T.tocsr()
            sums = sums - own @ np.asarray(self.instances[self.left_out], dtype=np.float32)
            sums[self.counts[rows] == np.diff(own.indptr)] = 0  # nothing is left, not even rounding
        return mix(texts, sums, self.alpha)
