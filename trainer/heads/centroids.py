"""Label centroids with momentum (PRIME, Eq. 4): a vector for each label, moved towards the label's queries.

    c_l <- .95 c_l + .05 m_l,    m_l = mean vector of the batch's queries for which l was drawn as a positive

A centroid starts as the unit mean of the label's instances.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from recollect.trainer.sharded import Sharded
from recollect.trainer.training.batches import Batch

_MOMENTUM = 0.95


class Centroids(nn.Module):
    """A vector for each label, and whether the label has instances.

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

    def follow(self, batch: Batch, queries: Float[Tensor, "query dim"]) -> None:
        """Move the centroids of the labels that were drawn as positives."""
        drawn, place, counts = np.unique(batch.positives.key, return_inverse=True, return_counts=True)
        shares = (1 / counts[place]).astype(np.float32)
        mean = sparse.csr_matrix((shares, (place, batch.positives.query)), shape=(len(drawn), len(batch.rows)))
        # numpy adds in the same order on every rank
        means, labels = torch.from_numpy(mean @ queries.cpu().numpy()), torch.from_numpy(batch.pool[drawn])
        labels = labels.to(self.vectors.device)
        self.vectors[labels] = _MOMENTUM * self.vectors[labels] + (1 - _MOMENTUM) * means.to(labels.device)
