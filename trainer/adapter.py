"""A small residual head on a frozen encoder: what trains in minutes where there is no GPU."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class Adapter(nn.Module):
    """z = unit(x + W2 gelu(W1 x + b1) + b2); W2 and b2 are zero at first, so z starts as the encoder's own vector."""

    def __init__(self, dim: int, hidden: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = hidden
        self.widen = nn.Linear(dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.narrow = nn.Linear(hidden, dim)
        nn.init.zeros_(self.narrow.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(self, vectors: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        change = self.narrow(self.dropout(nn.functional.gelu(self.widen(vectors))))
        return nn.functional.normalize(vectors + change, dim=-1)
