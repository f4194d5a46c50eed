"""The classifier head (UniDEC): a second view of queries and labels beside the text vectors, with a weight per label.

    query:  [ g(x) ; unit(dropout(W f(x) + b)) ] / sqrt 2        label:  [ g(z_l) ; unit(w_l) ] / sqrt 2

w_l is a trained vector for each label. Both views have equal weight in the similarity of two keys. By default, g is the
encoder's vector f, as in every method. UniDEC has a layer above the encoder, with fewer dimensions (`projection`).

UniDEC's paper trains the classifier with the inner product of dropout(W f(x) + b) and dropout(w_l), which are not
normalised; only its keys are (`normalised=False`). By default, both views are unit vectors in training too.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from recollect.trainer.enriched import mix
from recollect.trainer.heads.head import Head
from recollect.trainer.heads.projection import TanhLayer
from recollect.trainer.sharded import Sharded

_DROPOUT = 0.1


class Classifier(Head):
    """Queries and labels have two views each, the text vector and the classifier's. A key is their concatenation.

    Args:
        normalised: Whether the classifier's views are unit vectors in training too. Keys always have unit vectors.
        projection: Size of a view above the layer g. 0: no such layer.
    """

    kind: ClassVar[str] = "classifier"
    query_views, label_views = 2, 2

    def __init__(self, dim: int, labels: int, normalised: bool = True, projection: int = 0) -> None:
        view = projection or dim
        super().__init__(view, 2 * view, labels=labels, normalised=normalised, projection=projection)
        self.normalised = normalised
        self.reduce = TanhLayer(dim, projection) if projection else None
        self.project = nn.Linear(dim, self.dim)
        self.dropout = nn.Dropout(_DROPOUT)
        self.weights = nn.Parameter(torch.zeros(labels, self.dim))
        nn.init.zeros_(self.project.bias)
        with torch.no_grad():  # at first, both views of a query have nearly the same similarities
            self.project.weight.copy_(torch.eye(dim) if self.reduce is None else self.reduce.weight)

    def queries(self, vectors: Float[Tensor, "row below"]) -> Float[Tensor, "row 2 dim"]:
        return self._views(self._reduced(vectors), self.dropout(self.project(vectors)))

    def labels(self, vectors: Float[Tensor, "row below"], rows: Int[Tensor, " row"]) -> Float[Tensor, "row 2 dim"]:
        weights = self.weights[rows]
        return self._views(self._reduced(vectors), weights if self.normalised else self.dropout(weights))

    def _reduced(self, vectors: Float[Tensor, "row below"]) -> Float[Tensor, "row dim"]:
        """Return g."""
        return vectors if self.reduce is None else self.reduce(vectors)

    def _views(self, vectors: Float[Tensor, "row dim"], others: Float[Tensor, "row dim"]) -> Float[Tensor, "row 2 dim"]:
        return torch.stack([vectors, nn.functional.normalize(others, dim=-1) if self.normalised else others], dim=1)

    def key(self, views: Float[Tensor, "row 2 dim"]) -> Float[Tensor, "row key"]:
        if not self.normalised:
            views = nn.functional.normalize(views, dim=-1)
        return views.flatten(1) / math.sqrt(2)

    def key_views(self) -> dict[str, slice]:
        return {"dual encoder": slice(0, self.dim), "classifier": slice(self.dim, 2 * self.dim)}

    def search_view(self) -> slice:
        return self.key_views()["dual encoder"]  # as in UniDEC's code

    def start(
        self, texts: Float[np.ndarray, "label dim"], instances: Sharded, values: sparse.csr_matrix, seed: int
    ) -> None:
        """Initialise each label's vector w_l between the label's text vector and the mean of its instances."""
        weights = mix(texts, instances.label_sums(values), alpha=0.5)
        with torch.no_grad():
            start = torch.from_numpy(weights)
            if self.reduce is not None:
                start = nn.functional.normalize(start @ self.project.weight.cpu().T, dim=-1)
            self.weights.copy_(start)

    def lookups(self) -> list[nn.Parameter]:
        return [self.weights]

    def label_tables(self) -> list[nn.Parameter]:
        return [self.weights]
