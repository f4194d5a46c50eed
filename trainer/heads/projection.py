"""The projection head (UniDEC): a layer with tanh and fewer dimensions above the text vectors of queries and labels.

    g(x) = unit(dropout(tanh(V sqrt(d) f(x) + c)))

f(x) is the encoder's vector, with d dimensions. g is the key of SupconDE, and the first view of UniDEC.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from recollect.trainer.heads.head import Head

_DROPOUT = 0.1


class TanhLayer(nn.Linear):
    """The layer g. At the start of training, V is orthogonal, which keeps most of the similarities, and c is 0.

    The entries of sqrt(d) f(x) have about the size 1, like those of UniDEC's vectors.
    """

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, vectors: Float[Tensor, "row below"]) -> Float[Tensor, "row dim"]:
        entries = torch.tanh(super().forward(math.sqrt(self.in_features) * vectors))
        return nn.functional.normalize(nn.functional.dropout(entries, _DROPOUT, self.training), dim=-1)


class Projection(Head):
    """Queries and labels have one view, which is the key: the layer g on the text vector."""

    kind: ClassVar[str] = "projection"
    query_views, label_views = 1, 1

    def __init__(self, dim: int, projection: int) -> None:
        super().__init__(projection, projection=projection)
        self.reduce = TanhLayer(dim, projection)

    def queries(self, vectors: Float[Tensor, "row below"]) -> Float[Tensor, "row 1 dim"]:
        reduced: Tensor = self.reduce(vectors)
        return reduced[:, None]

    def labels(self, vectors: Float[Tensor, "row below"], rows: Int[Tensor, " row"]) -> Float[Tensor, "row 1 dim"]:
        return self.queries(vectors)
