"""Small residual networks above a frozen encoder. Their training takes minutes on a CPU.

Queries and instances have one network, labels have another. At the start of training both return the encoder's own
vectors. Two networks can separate two kinds of text where one shared network could not.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

Side = Literal["queries", "labels"]


class ResidualHead(nn.Module):
    """z = unit(x + W2 gelu(W1 x + b1) + b2). W2 and b2 start at zero, so z starts as x."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.narrow = nn.Linear(hidden, dim)
        nn.init.zeros_(self.narrow.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(self, vectors: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        change = self.narrow(self.dropout(nn.functional.gelu(self.widen(vectors))))
        return nn.functional.normalize(vectors + change, dim=-1)


class Adapter(nn.Module):
    """Two networks: one for queries and instances, one for labels."""

    def __init__(self, dim: int, hidden: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = hidden
        self.queries = ResidualHead(dim, hidden, dropout)
        self.labels = ResidualHead(dim, hidden, dropout)

    def freeze(self) -> None:
        """Change neither weights nor, by dropout, vectors in a training."""
        self.requires_grad_(False)
        self.queries.dropout.p = self.labels.dropout.p = 0.0

    def forward(self, vectors: Float[Tensor, "batch dim"], side: Side = "queries") -> Float[Tensor, "batch dim"]:
        adapted: Tensor = self.labels(vectors) if side == "labels" else self.queries(vectors)
        return adapted
