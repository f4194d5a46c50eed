"""Label centroids: the mean of each label's instances, which follows them as they move, and leaves a step's own out.

PRIME keeps a momentum mean a label. Here each instance's vector follows by momentum, and a centroid is the mean of
those: as quick for a rare label as for a frequent one, and exact to take instances out of. That matters, since a query
that sat in the centroids of its own labels would be near them for that alone, the rarer the label the more.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from trainer.batches import Batch

# Of an instance's vector, at each of its visits. As far as a label of 14 instances goes with PRIME's .95 a visit.
_MOMENTUM = 0.5
# Instances whose vectors are in full precision at once.
_STRETCH = 65_536


class Centroids(nn.Module):
    """The sums of the vectors of each label's instances, and while training those vectors, in half precision.

    Args:
        labels: How many there are.
        dim: Size of a vector.
    """

    def __init__(self, labels: int, dim: int) -> None:
        super().__init__()
        self.sums: Tensor
        self.counts: Tensor
        self.register_buffer("sums", torch.zeros(labels, dim))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int64))
        self.followed: Float[np.ndarray, "instance dim"] = np.zeros((0, dim), np.float16)
        self._left_out: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, rows: Int[Tensor, " row"], texts: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
        """Unit vectors; a label without instances is where its text is."""
        sums, counts = self.sums[rows], self.counts[rows]
        if self._left_out is not None:
            pool, theirs, many = self._left_out
            place = torch.searchsorted(pool, rows)
            sums, counts = sums - theirs[place], counts - many[place]
        return torch.where((counts > 0)[:, None], nn.functional.normalize(sums, dim=-1), texts)

    def start(self, instances: Float[np.ndarray, "instance dim"], values: sparse.csr_matrix) -> None:
        """Begin with the instances' vectors, and their labels; an instance without any is held out."""
        self.followed = instances.astype(np.float16)
        self.sums.zero_()
        for start in range(0, len(instances), _STRETCH):
            stretch = slice(start, start + _STRETCH)
            self.sums += self._here(values[stretch].T @ self.followed[stretch].astype(np.float32))
        self.counts.copy_(torch.from_numpy(np.bincount(values.indices, minlength=len(self.counts))))

    def leave_out(self, batch: Batch) -> None:
        """Leave a batch's queries out of the labels of its pool, until they have been followed."""
        own = batch.label_sets[:, batch.pool].T.tocsr()
        theirs, many = own @ self.followed[batch.rows].astype(np.float32), np.diff(own.indptr)
        self._left_out = (self._here(batch.pool), self._here(theirs), self._here(many))

    def follow(self, batch: Batch, queries: Float[Tensor, "query dim"]) -> None:
        """Move the centroids of all labels of a batch's queries, as far as these have moved."""
        self._left_out = None
        before = self.followed[batch.rows]
        after = _MOMENTUM * before.astype(np.float32) + (1 - _MOMENTUM) * queries.cpu().numpy()
        self.followed[batch.rows] = after
        moved = self.followed[batch.rows].astype(np.float32) - before.astype(np.float32)
        labels = np.unique(batch.label_sets.indices)
        self.sums.index_add_(0, self._here(labels), self._here(batch.label_sets[:, labels].T @ moved))

    def _here(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.sums.device)
