"""Label prototypes (PRIME): one vector for a label, made of its text, its instances and its cluster of labels.

    p_l = unit( mean of Transformer( [t_l, v_c(l), c_l] ) )

t_l is the vector of the label text, c_l the centroid of its instances, and v_c(l) a free vector from a bank: all labels
of a cluster share one free vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from recollect.trainer.clustering import balanced_clusters
from recollect.trainer.heads.head import Head
from recollect.trainer.randomness import Purpose, generator
from recollect.trainer.sharded import Sharded

_FEED_FORWARD, _DROPOUT = 1_024, 0.1
# Weight of a centroid's old vector.
_MOMENTUM = 0.95


class Centroids(nn.Module):
    """A vector for each label, moved towards the label's queries with momentum (PRIME, Eq. 4).

        c_l <- .95 c_l + .05 m_l,    m_l = mean vector of the batch's queries for which l was drawn as a positive

    A centroid starts as the unit mean of the label's instances. A rare label moves slowly.
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

    def follow(
        self, queries: Float[Tensor, "query dim"], query: Int[np.ndarray, " pair"], label: Int[np.ndarray, " pair"]
    ) -> None:
        """Move the centroids of the labels that were drawn as positives."""
        drawn, place, counts = np.unique(label, return_inverse=True, return_counts=True)
        shares = (1 / counts[place]).astype(np.float32)
        mean = sparse.csr_matrix((shares, (place, query)), shape=(len(drawn), len(queries)))
        means = torch.from_numpy(mean @ queries.cpu().numpy())  # numpy adds in the same order on every rank
        labels = torch.from_numpy(drawn).to(self.vectors.device)
        self.vectors[labels] = _MOMENTUM * self.vectors[labels] + (1 - _MOMENTUM) * means.to(labels.device)


class Prototypes(Head):
    """Queries have one view, their vector. Labels have two: the prototype, which is the key, and the text vector.

    Args:
        tokens: The parts of a prototype: `text`, `free` and `centroid`, or some of them.
        bank: Number of free vectors. 0 if `free` is not among the tokens.
    """

    kind: ClassVar[str] = "prototypes"
    query_views, label_views = 1, 2

    def __init__(self, dim: int, labels: int, tokens: Sequence[str], bank: int) -> None:
        super().__init__(dim, labels=labels, tokens=list(tokens), bank=bank)
        self.has_texts = "text" in tokens
        self.layer = nn.TransformerEncoderLayer(dim, 1, _FEED_FORWARD, _DROPOUT, "gelu", batch_first=True)
        for last in (self.layer.self_attn.out_proj, self.layer.linear2):  # a prototype starts as the mean of its parts
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.free = nn.Parameter(torch.zeros(bank, dim))
        self.cluster: Tensor
        self.register_buffer("cluster", torch.zeros(labels if bank else 0, dtype=torch.int64))
        self.centroids = Centroids(labels, dim) if "centroid" in tokens else None

    def queries(self, vectors: Float[Tensor, "row dim"]) -> Float[Tensor, "row 1 dim"]:
        return vectors[:, None]

    def labels(self, vectors: Float[Tensor, "row dim"], rows: Int[Tensor, " row"]) -> Float[Tensor, "row 2 dim"]:
        parts = [vectors] if self.has_texts else []
        if len(self.free):
            parts.append(self.free[self.cluster[rows]])
        if self.centroids is not None:
            parts.append(self.centroids(rows, vectors))
        mixed = self.layer(torch.stack(parts, dim=1)).mean(dim=1)
        return torch.stack([nn.functional.normalize(mixed, dim=-1), vectors], dim=1)

    def start(
        self, texts: Float[np.ndarray, "label dim"], instances: Sharded, values: sparse.csr_matrix, seed: int
    ) -> None:
        """Start each free vector as the mean text vector of its cluster."""
        if self.centroids is not None:
            self.centroids.start(instances, values)
        if len(self.free):
            bank = len(self.free)
            shares = Sharded.of(texts, instances.ranks, instances.device)
            cluster = balanced_clusters(shares, np.arange(len(texts)), bank, generator(seed, Purpose.BANK))
            means = sparse.csr_matrix((np.ones(len(texts), np.float32), (cluster, np.arange(len(texts))))) @ texts
            with torch.no_grad():
                self.cluster.copy_(torch.from_numpy(cluster))
                self.free.copy_(nn.functional.normalize(torch.from_numpy(means), dim=-1))

    def follow(
        self, queries: Float[Tensor, "query dim"], query: Int[np.ndarray, " pair"], label: Int[np.ndarray, " pair"]
    ) -> None:
        if self.centroids is not None:
            self.centroids.follow(queries, query, label)

    def lookups(self) -> list[nn.Parameter]:
        return [self.free]
