"""What a method is: a pool of keys, a loss over it, and the settings it is known to do well with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from trainer.ranks import Ranks


@dataclass(frozen=True)
class Scored:
    """Some queries of a batch against this process's part of the pool; similarities are over tau already.

    Attributes:
        labels: Similarities to the pool's labels.
        positives: The true labels that this visit pulls closer.
        relevant: All true labels.
        instances: Similarities to the batch's instances; no columns for a method that leaves them out.
        strangers: Which of them share no label with the query.
        ranks: The processes that share the pool.
    """

    labels: Float[Tensor, "query key"]
    positives: Bool[Tensor, "query key"]
    relevant: Bool[Tensor, "query key"]
    instances: Float[Tensor, "query instance"]
    strangers: Bool[Tensor, "query instance"]
    ranks: Ranks


@dataclass(frozen=True)
class Method:
    """One way to train an encoder.

    Attributes:
        name: What `--method` calls it.
        loss: One number a query.
        instances: Whether the batch's instances are keys of the pool too.
        hard_negatives: Mined negatives a query by default. None: the pool is the whole label space, and needs none.
        positives: True labels of a query that are pulled closer at each visit, by default; 0: all in the pool.
        temperature: Tau, by default.
    """

    name: str
    loss: Callable[[Scored], Float[Tensor, " query"]]
    instances: bool
    hard_negatives: int | None
    positives: int
    temperature: float

    def mined(self, asked: int | None) -> int | None:
        """Mined negatives a query: as many as were asked for, or by default."""
        return self.hard_negatives if asked is None else asked
