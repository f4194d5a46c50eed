"""The dual encoder above the text vectors: an optional adapter, then an optional head.

A loss compares *views*: vectors, one or several for each query and each label. They are unit vectors, except with
`--no-normalise`. The memory stores one *key* for each text, which is made of its views. Without a head the vector
itself is the only view, and it is the key.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from recollect.trainer.heads.adapter import Adapter, Side
from recollect.trainer.heads.head import Head
from recollect.trainer.heads.label_table import LabelTable


class DualEncoder(nn.Module):
    """A model that maps queries and labels to unit vectors. Subclasses define the inputs.

    Args:
        adapter: The residual networks of queries and labels. None: the vectors pass unchanged.
        head: The head of the training method. None: the vector itself is compared by the loss and stored as the key.
        normalised: Whether all vectors are unit vectors. Otherwise they keep their lengths.

    Attributes:
        dropout: Dropout on the vectors below the head, in training only. Its probability is 0 until training sets it.
        numbers: The learned numbers of the loss, in training only.
    """

    def __init__(
        self, dim: int, adapter: Adapter | None = None, head: Head | None = None, normalised: bool = True
    ) -> None:
        super().__init__()
        self.dim = dim
        self.normalised = normalised
        self.adapter = adapter
        self.head = head
        self.dropout = nn.Dropout(0.0)
        self.numbers = nn.ParameterDict()

    @property
    def key_dim(self) -> int:
        return self.dim if self.head is None else self.head.key_dim

    @property
    def is_static(self) -> bool:
        """Whether a table of token vectors is in the place of the transformer."""
        return False

    @property
    def table(self) -> LabelTable | None:
        """The vectors that the loss compares in the place of label texts; None if it compares texts."""
        return None if self.head is None else self.head.table

    @property
    def view_dim(self) -> int:
        return self.dim if self.head is None else self.head.dim

    def view_count(self, side: Side) -> int:
        if self.head is None:
            return 1
        return self.head.label_views if side == "labels" else self.head.query_views

    def lookups(self) -> list[nn.Parameter]:
        """Return the tables with one vector for each label, cluster or token."""
        return [] if self.head is None else self.head.lookups()

    def views(self, *inputs: Any) -> Float[Tensor, "row view dim"]:
        """Return the views of a batch, the unit vectors that the loss compares.

        The arguments are those of `Inputs.batch`.
        """
        raise NotImplementedError

    def views_of_vectors(
        self, vectors: Float[Tensor, "row below"], side: Side, rows: Int[Tensor, " row"] | None
    ) -> Float[Tensor, "row view dim"]:
        """Apply adapter, dropout and head to text vectors. For a head, `rows` must contain the label positions.

        DEXML's code drops dimensions of the pooled vector h before it normalises h. Here h is a unit vector already,
        which gives the same result, because the length of h does not matter: unit(dropout(unit(h))) = unit(dropout(h)).
        """
        if self.adapter is not None:
            vectors = self.adapter(vectors, side)
        if self.training and self.dropout.p > 0:
            vectors = self.normalise(self.dropout(vectors))
        if self.head is None:
            return vectors[:, None]
        if side == "queries":
            return self.head.queries(vectors)
        assert rows is not None
        return self.head.labels(vectors, rows)

    def normalise(self, vectors: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
        """Return unit vectors, or, without normalisation, the vectors themselves."""
        return nn.functional.normalize(vectors, dim=-1) if self.normalised else vectors

    def key(self, views: Float[Tensor, "row view dim"]) -> Float[Tensor, "row key"]:
        return views[:, 0] if self.head is None else self.head.key(views)


class VectorDualEncoder(DualEncoder):
    """A dual encoder whose inputs are vectors that a frozen encoder computed before."""

    def views(
        self, vectors: Float[Tensor, "row below"], side: Side = "queries", rows: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, "row view dim"]:
        return self.views_of_vectors(vectors, side, rows)

    def forward(
        self, vectors: Float[Tensor, "row below"], side: Side = "queries", rows: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, "row key"]:
        return self.key(self.views(vectors, side, rows))
