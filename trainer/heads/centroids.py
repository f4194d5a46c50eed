"""Label centroids: the mean of the vectors of each label's instances, updated during training.

PRIME keeps a momentum mean for each label (`MomentumCentroids`). In `Centroids`, a vector for each instance is updated
with momentum, and a centroid is the mean of these vectors. A rare label is then updated as fast as a frequent one, and
an instance can be left out exactly. Each step leaves its queries out of the centroids of their labels. Otherwise a
query would be near these centroids only because it is part of them, above all for a rare label.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from recollect.trainer.sharded import Sharded
from recollect.trainer.training.batches import Batch

# Weight of an instance's old vector when a step updates the vector. The centroid of a label with 14 instances then
# changes as much as with PRIME's momentum of .95.
_MOMENTUM = 0.5
# Weight of a label's old vector in PRIME.
_LABEL_MOMENTUM = 0.95


class Centroids(nn.Module):
    """The sum of each label's instance vectors and, during training, the instance vectors in half precision.

    Each rank stores the vectors of its share of the instances.

    Args:
        labels: Number of labels.
        dim: Size of a vector.
    """

    def __init__(self, labels: int, dim: int) -> None:
        super().__init__()
        self.sums: Tensor
        self.counts: Tensor
        self.register_buffer("sums", torch.zeros(labels, dim))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int64))
        self.followed = Sharded(np.zeros((0, dim), np.float16), 0)
        self._left_out: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, rows: Int[Tensor, " row"], texts: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
        """Return unit vectors. A label without instances gets its text vector."""
        sums, counts = self.sums[rows], self.counts[rows]
        if self._left_out is not None:
            pool, left_out_sums, left_out_counts = self._left_out
            place = torch.searchsorted(pool, rows)
            sums, counts = sums - left_out_sums[place], counts - left_out_counts[place]
        return torch.where((counts > 0)[:, None], nn.functional.normalize(sums, dim=-1), texts)

    def start(self, instances: Sharded, values: sparse.csr_matrix) -> None:
        """Initialise the sums from instance vectors and their labels. A held-out instance has no labels in `values`."""
        self.followed = dataclasses.replace(instances, own=instances.own.astype(np.float16))
        self.sums.copy_(torch.from_numpy(self.followed.label_sums(values)))
        self.counts.copy_(torch.from_numpy(np.bincount(values.indices, minlength=len(self.counts))))

    def leave_out(self, batch: Batch) -> None:
        """Leave the queries of a batch out of the centroids of the labels in its pool, until `follow` is called."""
        own = batch.label_sets[:, batch.pool].T.tocsr()
        sums, counts = own @ self.followed.gather(batch.rows).astype(np.float32), np.diff(own.indptr)
        self._left_out = (self._on_device(batch.pool), self._on_device(sums), self._on_device(counts))

    def follow(self, batch: Batch, queries: Float[Tensor, "query dim"]) -> None:
        """Update the stored vectors of a batch's queries with momentum, and the sums of the queries' labels."""
        self._left_out = None
        before = self.followed.gather(batch.rows).astype(np.float32)
        after = (_MOMENTUM * before + (1 - _MOMENTUM) * queries.cpu().numpy()).astype(np.float16)
        places, own = self.followed.find_own(batch.rows)
        self.followed.own[own] = after[places]
        moved = after.astype(np.float32) - before
        labels = np.unique(batch.label_sets.indices)
        self.sums.index_add_(0, self._on_device(labels), self._on_device(batch.label_sets[:, labels].T @ moved))

    def training_arrays(self) -> dict[str, Sharded]:
        """Return the instance vectors, which training needs to resume."""
        return {"followed": self.followed}

    def load_training_arrays(self, arrays: dict[str, Sharded]) -> None:
        """Restore the arrays that `training_arrays` returned."""
        self.followed = arrays["followed"]

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.sums.device)


class MomentumCentroids(nn.Module):
    """Centroids as PRIME prints them (Eq. 4): a vector for each label, moved towards the label's queries.

        c_l <- .95 c_l + .05 m_l,    m_l = mean vector of the batch's queries for which l was drawn as a positive

    A centroid starts as the unit mean of the label's instances. It has the methods of `Centroids`. A rare label moves
    slowly, and a query is near the centroids of its labels because it is part of them.

    Args:
        labels: Number of labels.
        dim: Size of a vector.
    """

    def __init__(self, labels: int, dim: int) -> None:
        super().__init__()
        self.vectors: Tensor
        self.known: Tensor
        self.register_buffer("vectors", torch.zeros(labels, dim))
        self.register_buffer("known", torch.zeros(labels, dtype=torch.bool))

    def forward(self, rows: Int[Tensor, " row"], texts: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
        """Return unit vectors. A label without instances gets its text vector."""
        return torch.where(self.known[rows][:, None], nn.functional.normalize(self.vectors[rows], dim=-1), texts)

    def start(self, instances: Sharded, values: sparse.csr_matrix) -> None:
        """Initialise the vectors from instance vectors and their labels. `values` has no labels for held-out ones."""
        sums = torch.from_numpy(instances.label_sums(values))
        self.vectors.copy_(nn.functional.normalize(sums, dim=-1))
        self.known.copy_(torch.from_numpy(np.bincount(values.indices, minlength=len(self.known)) > 0))

    def leave_out(self, batch: Batch) -> None:
        """Do nothing: the paper leaves no query out of a centroid."""

    def follow(self, batch: Batch, queries: Float[Tensor, "query dim"]) -> None:
        """Move the centroids of the labels that were drawn as positives."""
        drawn, place, counts = np.unique(batch.positives.key, return_inverse=True, return_counts=True)
        shares = (1 / counts[place]).astype(np.float32)
        mean = sparse.csr_matrix((shares, (place, batch.positives.query)), shape=(len(drawn), len(batch.rows)))
        # numpy adds in the same order on every rank
        means, labels = torch.from_numpy(mean @ queries.cpu().numpy()), torch.from_numpy(batch.pool[drawn])
        labels = labels.to(self.vectors.device)
        self.vectors[labels] = _LABEL_MOMENTUM * self.vectors[labels] + (1 - _LABEL_MOMENTUM) * means.to(labels.device)

    def training_arrays(self) -> dict[str, Sharded]:
        """Return nothing: the weights of the head have the whole state."""
        return {}

    def load_training_arrays(self, arrays: dict[str, Sharded]) -> None:
        """Restore nothing."""
