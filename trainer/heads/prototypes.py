"""Label prototypes (PRIME): one vector for a label, made of its text, its instances and its cluster of labels.

    p_l = unit( mean of Transformer( [t_l, v_c(l), c_l] ) )

t_l is the vector of the label text, c_l the centroid of its instances, and v_c(l) a free vector from a bank: all labels
of a cluster share one free vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from recollect.trainer.heads.centroids import Centroids, MomentumCentroids
from recollect.trainer.heads.head import Head
from recollect.trainer.randomness import Purpose, generator
from recollect.trainer.settings import CentroidKind, PrototypeToken
from recollect.trainer.sharded import Sharded
from recollect.trainer.training.batches import Batch
from recollect.trainer.training.clustering import balanced_clusters

_CENTROIDS: dict[CentroidKind, type[Centroids | MomentumCentroids]] = {
    "instances": Centroids,
    "ema": MomentumCentroids,
}
_FEED_FORWARD, _DROPOUT = 1_024, 0.1


class Prototypes(Head):
    """Queries have one view, their vector. Labels have two: the prototype, which is the key, and the text vector.

    Args:
        dim: Size of a vector.
        labels: Number of labels.
        tokens: The parts of a prototype: `text`, `free` and `centroid`, or some of them.
        bank: Number of free vectors. 0 if `free` is not among the tokens.
        centroids: Kind of centroids, `instances` or `ema`.
    """

    kind: ClassVar[str] = "prototypes"
    query_views, label_views = 1, 2

    def __init__(
        self,
        dim: int,
        labels: int,
        tokens: Sequence[PrototypeToken],
        bank: int,
        centroids: CentroidKind = "instances",
    ) -> None:
        super().__init__(dim)
        self._shape: dict[str, Any] = {"labels": labels, "tokens": list(tokens), "bank": bank, "centroids": centroids}
        self.layer = nn.TransformerEncoderLayer(dim, 1, _FEED_FORWARD, _DROPOUT, "gelu", batch_first=True)
        for last in (self.layer.self_attn.out_proj, self.layer.linear2):  # a prototype starts as the mean of its parts
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.free = nn.Parameter(torch.zeros(bank, dim))
        self.cluster: Tensor
        self.register_buffer("cluster", torch.zeros(labels if bank else 0, dtype=torch.int64))
        kind = _CENTROIDS[centroids]
        self.centroids = kind(labels, dim) if "centroid" in tokens else None

    @property
    def key_dim(self) -> int:
        return self.dim

    def shape(self) -> dict[str, Any]:
        return self._shape

    def queries(self, vectors: Float[Tensor, "row dim"]) -> Float[Tensor, "row 1 dim"]:
        return vectors[:, None]

    def labels(self, vectors: Float[Tensor, "row dim"], rows: Int[Tensor, " row"]) -> Float[Tensor, "row 2 dim"]:
        parts = [vectors] if "text" in self._shape["tokens"] else []
        if len(self.free):
            parts.append(self.free[self.cluster[rows]])
        if self.centroids is not None:
            parts.append(self.centroids(rows, vectors))
        mixed = self.layer(torch.stack(parts, dim=1)).mean(dim=1)
        return torch.stack([nn.functional.normalize(mixed, dim=-1), vectors], dim=1)

    def key(self, views: Float[Tensor, "row view dim"]) -> Float[Tensor, "row dim"]:
        return views[:, 0]

    def start(
        self,
        texts: Float[np.ndarray, "label dim"],
        instances: Sharded,
        values: sparse.csr_matrix,
        seed: int,
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

    def leave_out(self, batch: Batch) -> None:
        if self.centroids is not None:
            self.centroids.leave_out(batch)

    def follow(self, batch: Batch, queries: Float[Tensor, "query dim"]) -> None:
        if self.centroids is not None:
            self.centroids.follow(batch, queries)

    def training_arrays(self) -> dict[str, Sharded]:
        return {} if self.centroids is None else self.centroids.training_arrays()

    def load_training_arrays(self, arrays: dict[str, Sharded]) -> None:
        if self.centroids is not None:
            self.centroids.load_training_arrays(arrays)

    def lookups(self) -> list[nn.Parameter]:
        return [self.free]
