"""The one-vs-all classifier: one weight vector for each label, as the "OvA classifier" of DEXML and RAE-XMC.

    p(l | x) = sigmoid( ( <f(x), unit(w_l)> - m ) / tau )

The threshold m is trained too. It is the same for all labels, so that the order of the labels is that of the inner
products, by which a memory searches. Triplets (NGAME) compare inner products with each other, so m has no effect on
them. The classifier reads no label texts. Its vectors become label keys, alone or joined to the text keys:

    alone:  z_l = unit(w_l)        joined:  z_l = unit( t_l + unit(w_l) )
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor, nn

from recollect.trainer.enriched import mix
from recollect.trainer.heads.head import Head
from recollect.trainer.heads.label_table import LabelTable
from recollect.trainer.sharded import Sharded

# The threshold at the start: halfway between unrelated and equal vectors.
_THRESHOLD = 0.5


class OvaClassifier(Head):
    """A vector for each label. In a view, one more number has the threshold: 1 for a query, and -m for a label.

    Args:
        keys: How the vectors become label keys: `alone` or `joined`.
    """

    kind: ClassVar[str] = "ova"
    query_views, label_views = 1, 1
    table: LabelTable

    def __init__(self, dim: int, labels: int, keys: str = "alone") -> None:
        super().__init__(dim + 1, dim, LabelTable(labels, dim), labels=labels, keys=keys)
        self.keys = keys
        self.threshold = nn.Parameter(torch.tensor(_THRESHOLD))

    def queries(self, vectors: Float[Tensor, "row below"]) -> Float[Tensor, "row 1 dim"]:
        return nn.functional.pad(vectors, (0, 1), value=1.0)[:, None]

    def labels(self, vectors: Float[Tensor, "row below"], rows: Int[Tensor, " row"]) -> Float[Tensor, "row 1 dim"]:
        views = self.table_views(rows)
        if self.keys == "alone":
            return views
        return self._views(nn.functional.normalize(vectors + self.key(views), dim=-1))

    def table_views(self, rows: Int[Tensor, " row"]) -> Float[Tensor, "row 1 dim"]:
        return self._views(nn.functional.normalize(self.table(rows), dim=-1))

    def _views(self, vectors: Float[Tensor, "row key"]) -> Float[Tensor, "row 1 dim"]:
        return torch.cat([vectors, -self.threshold.expand(len(vectors), 1)], dim=1)[:, None]

    def key(self, views: Float[Tensor, "row 1 dim"]) -> Float[Tensor, "row key"]:
        return views[:, 0, :-1]

    def start(
        self, texts: Float[np.ndarray, "label dim"], instances: Sharded, values: sparse.csr_matrix, seed: int
    ) -> None:
        """Initialise each label's vector between the label's text vector and the mean of its instances."""
        self.table.start(mix(texts, instances.label_sums(values), alpha=0.5))
