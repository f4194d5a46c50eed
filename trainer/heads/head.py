"""What stands on an encoder's vectors: an adapter, and the head that a method may add to it.

A loss compares *views*, unit vectors of which a side has one or several; the memory keeps a *key* a text, made of them.
Without a head the vector is the only view, and the key.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from trainer.batches import Batch
from trainer.heads.adapter import Adapter, Side


class Head(nn.Module, abc.ABC):
    """What a method learns above the vectors of queries and labels.

    Attributes:
        kind: What a checkpoint calls it.
        query_views: Views of a query.
        label_views: Views of a label; the loss compares each with the query's view of the same number, or its only one.
        dim: Size of a view.
    """

    kind: ClassVar[str]
    query_views: ClassVar[int]
    label_views: ClassVar[int]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    @property
    @abc.abstractmethod
    def key_dim(self) -> int:
        """Size of a key."""

    @abc.abstractmethod
    def queries(self, vectors: Float[Tensor, "row dim"]) -> Float[Tensor, "row view dim"]:
        """The views of queries, and so of instances."""

    @abc.abstractmethod
    def labels(self, vectors: Float[Tensor, "row dim"], rows: Int[Tensor, " row"]) -> Float[Tensor, "row view dim"]:
        """The views of labels, whose text vectors are given, and their numbers."""

    @abc.abstractmethod
    def key(self, views: Float[Tensor, "row view dim"]) -> Float[Tensor, "row key"]:
        """What the memory keeps, of unit length."""

    @abc.abstractmethod
    def start(
        self,
        texts: Float[np.ndarray, "label dim"],
        instances: Float[np.ndarray, "instance dim"],
        values: sparse.csr_matrix,
        seed: int,
    ) -> None:
        """Make what training begins with out of the vectors that there are.

        Args:
            texts: The label texts'.
            instances: The instances'.
            values: Y, "instance label"; empty where an instance is held out.
            seed: Decides every draw.
        """

    def leave_out(self, batch: Batch) -> None:  # noqa: B027
        """Make labels, until the step is over, as if its queries were no instances of theirs."""

    def follow(self, batch: Batch, queries: Float[Tensor, "query dim"]) -> None:  # noqa: B027
        """The step is over: take note of its queries."""

    def scratch(self) -> dict[str, np.ndarray]:
        """What only training needs, beside the weights, and must find again when it goes on; by file name."""
        return {}

    def restore(self, scratch: dict[str, np.ndarray]) -> None:  # noqa: B027
        """Take back what `scratch` gave."""

    @abc.abstractmethod
    def lookups(self) -> list[nn.Parameter]:
        """What has a vector a label or a cluster of them: it learns faster, and does not decay."""

    @abc.abstractmethod
    def shape(self) -> dict[str, Any]:
        """What to make it of again, beside its weights: arguments of its class, but for `dim`."""


class Refinement(nn.Module):
    """A model whose vectors an adapter refines and a head sees; what it reads, its heirs say.

    Args:
        dim: Size of the vectors below.
        adapter: The residual heads of either side, if there are any.
        head: What a method adds, if it adds anything.
    """

    def __init__(self, dim: int, adapter: Adapter | None = None, head: Head | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.adapter = adapter
        self.head = head

    @property
    def key_dim(self) -> int:
        return self.dim if self.head is None else self.head.key_dim

    def view_count(self, side: Side) -> int:
        if self.head is None:
            return 1
        return self.head.label_views if side == "labels" else self.head.query_views

    def views(self, *inputs: Any) -> Float[Tensor, "row view dim"]:
        """What a loss compares, of what `Inputs.batch` gives."""
        raise NotImplementedError

    def refine(
        self, vectors: Float[Tensor, "row dim"], side: Side, rows: Int[Tensor, " row"] | None
    ) -> Float[Tensor, "row view dim"]:
        if self.adapter is not None:
            vectors = self.adapter(vectors, side)
        if self.head is None:
            return vectors[:, None]
        if side == "queries":
            return self.head.queries(vectors)
        assert rows is not None
        return self.head.labels(vectors, rows)

    def key(self, views: Float[Tensor, "row view dim"]) -> Float[Tensor, "row key"]:
        return views[:, 0] if self.head is None else self.head.key(views)


class VectorModel(Refinement):
    """Reads vectors that a frozen encoder made before."""

    def views(
        self, vectors: Float[Tensor, "row dim"], side: Side = "queries", rows: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, "row view dim"]:
        return self.refine(vectors, side, rows)

    def forward(
        self, vectors: Float[Tensor, "row dim"], side: Side = "queries", rows: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, "row key"]:
        return self.key(self.views(vectors, side, rows))
