"""The inputs of a loss: similarities of some queries to the pool, or of some labels to the queries."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from recollect.trainer.distributed import Ranks


@dataclass(frozen=True)
class Scored:
    """Some queries of a batch, compared with this rank's share of the pool. Similarities are already divided by tau.

    Attributes:
        labels: Similarities to the labels of the pool, in each view.
        positives: The true labels that this step moves closer to the query.
        relevant: All true labels.
        instances: Similarities to the instances of the batch. The matrix has no columns if the method does not use
            instances as keys.
        disjoint_instances: The instances that share no label with the query.
        ranks: The processes that share the pool.
    """

    labels: Float[Tensor, "view query key"]
    positives: Bool[Tensor, "query key"]
    relevant: Bool[Tensor, "query key"]
    instances: Float[Tensor, "query instance"]
    disjoint_instances: Bool[Tensor, "query instance"]
    ranks: Ranks


@dataclass(frozen=True)
class ScoredLabels:
    """Some of this rank's labels, compared with all queries of a batch.

    Attributes:
        queries: Similarities to the queries, in each view.
        positives: The queries that this step moves closer to the label.
        relevant: All queries that have the label.
    """

    queries: Float[Tensor, "view label query"]
    positives: Bool[Tensor, "label query"]
    relevant: Bool[Tensor, "label query"]
