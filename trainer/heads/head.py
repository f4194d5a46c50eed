"""The interface of a head: the part of a model that a training method adds above the text vectors.

A head makes *views*, unit vectors which the loss compares, and the *key* of each text, which the memory stores.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from recollect.trainer.heads.label_table import LabelTable
from recollect.trainer.sharded import Sharded


class Head(nn.Module, abc.ABC):
    """A network above the vectors of queries and labels.

    Args:
        dim: Size of a view. The vectors below the head may have another size.
        key_dim: Size of a key, if it is another one.
        table: The vectors of labels that the loss compares in the place of label texts. None: it compares texts.
        shape: The other arguments of the class, which a checkpoint stores.

    Attributes:
        kind: Name of the class in a checkpoint.
        query_views: Number of views of a query.
        label_views: Number of views of a label. The loss compares view number i of a label with view number i of a
            query, or with the query's only view.
    """

    kind: ClassVar[str]
    query_views: ClassVar[int]
    label_views: ClassVar[int]
    table: LabelTable | None

    def __init__(
        self, dim: int, key_dim: int | None = None, table: LabelTable | None = None, **shape: str | int | list[str]
    ) -> None:
        super().__init__()
        self.dim, self.key_dim = dim, key_dim or dim
        self.table, self.shape = table, shape

    @abc.abstractmethod
    def queries(self, vectors: Float[Tensor, "row below"]) -> Float[Tensor, "row view dim"]:
        """Return the views of queries or instances."""

    @abc.abstractmethod
    def labels(self, vectors: Float[Tensor, "row below"], rows: Int[Tensor, " row"]) -> Float[Tensor, "row view dim"]:
        """Return the views of labels, given their text vectors and their label positions."""

    def table_views(self, rows: Int[Tensor, " row"]) -> Float[Tensor, "row view dim"]:
        """Return the views of labels in the loss, for a head with a table."""
        raise NotImplementedError

    def key(self, views: Float[Tensor, "row view dim"]) -> Float[Tensor, "row key"]:
        """Return the keys, which are unit vectors: by default, the first views."""
        return views[:, 0]

    def key_views(self) -> dict[str, slice]:
        """Return the part of a key that is one view, by the name of the view. The parts have equal length.

        The result is empty if a key is not made of several views.
        """
        return {}

    def search_view(self) -> slice:
        """Return the part of a key by which training clusters queries and mines hard negatives: by default, all."""
        return slice(None)

    def start(  # noqa: B027
        self, texts: Float[np.ndarray, "label dim"], instances: Sharded, values: sparse.csr_matrix, seed: int
    ) -> None:
        """Initialise the weights from the vectors that exist before training.

        Args:
            instances: Vectors of the instances. Each rank holds its share.
            values: The relevance matrix Y, with the axes (instance, label). The row of a held-out instance is empty.
        """

    def follow(  # noqa: B027
        self, queries: Float[Tensor, "query dim"], query: Int[np.ndarray, " pair"], label: Int[np.ndarray, " pair"]
    ) -> None:
        """Update the head at the end of a step.

        Args:
            query: The query of each pair with a drawn true label, as its place in the batch.
        """

    def lookups(self) -> list[nn.Parameter]:
        """Return the tables with one vector for each label or cluster.

        Training gives these tables a higher learning rate. Tables that are not in `label_tables` have no weight decay.
        """
        return []

    def label_tables(self) -> list[nn.Parameter]:
        """Return the tables with one row for each label. A step has gradients for the rows of its pool only."""
        return []
