"""What a method is: a pool of keys, a loss over it, what it learns above the encoder, and what it does well with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from trainer.heads.head import Head
from trainer.heads.prototypes import PrototypeToken
from trainer.ranks import Ranks

PSL = Literal["pal-n", "pal"]


@dataclass(frozen=True)
class Options:
    """What some methods can be told beyond their pool; each heeds those that its `flags` name.

    Attributes:
        symmetric: Whether labels are asked for queries too.
        psl: Which of UniDEC's losses.
        margin: Bounds of the triplets' margin.
        prototype: What PRIME makes prototypes of.
        bank: Free vectors that its labels share; 0 where `prototype` has none.
    """

    symmetric: bool = False
    psl: PSL = "pal-n"
    margin: tuple[float, float] = (0.1, 0.3)
    prototype: tuple[PrototypeToken, ...] = ()
    bank: int = 0


@dataclass(frozen=True)
class Scored:
    """Some queries of a batch against this process's part of the pool; similarities are over tau already.

    Attributes:
        labels: Similarities to the pool's labels, in each view.
        positives: The true labels that this visit pulls closer.
        relevant: All true labels.
        instances: Similarities to the batch's instances; no columns for a method that leaves them out.
        strangers: Which of them share no label with the query.
        ranks: The processes that share the pool.
        options: What the method was told.
    """

    labels: Float[Tensor, "view query key"]
    positives: Bool[Tensor, "query key"]
    relevant: Bool[Tensor, "query key"]
    instances: Float[Tensor, "query instance"]
    strangers: Bool[Tensor, "query instance"]
    ranks: Ranks
    options: Options


@dataclass(frozen=True)
class ScoredLabels:
    """Some of this process's labels against all queries of a batch: the same, seen from the other side.

    Attributes:
        queries: Similarities to the queries, in each view.
        positives: The queries that this visit pulls closer.
        relevant: All queries that have the label.
        options: What the method was told.
    """

    queries: Float[Tensor, "view label query"]
    positives: Bool[Tensor, "label query"]
    relevant: Bool[Tensor, "label query"]
    options: Options


@dataclass(frozen=True)
class Method:
    """One way to train an encoder.

    Attributes:
        name: What `--method` calls it.
        loss: One number a query.
        hard_negatives: Mined negatives a query by default. None: the pool is the whole label space, and needs none.
        positives: True labels of a query that are drawn at each visit, by default; 0: all in the pool.
        temperature: Tau, by default. None: the loss reads similarities as they are.
        instances: Whether the batch's instances are keys of the pool too.
        pulls_pool: Whether a visit pulls every true label in the pool closer, whoever drew it; else those drawn.
        label_loss: One number a label, added to the queries' where `Options.symmetric`; None: there is none.
        positive_sampling: How labels are drawn by default.
        clusters: Of what batches are made by default: of queries at random; of clusters that grow (NGAME); or one
            cluster each.
        label_inputs: What an adapter reads of a label by default.
        head: What it learns above the encoder, for vectors of so many dimensions and so many labels.
        flags: What of `Options` it heeds.
        tuned: Whether its memory's lambda is chosen at once by default, where something was held out.
    """

    name: str
    loss: Callable[[Scored], Float[Tensor, " query"]]
    hard_negatives: int | None
    positives: int
    temperature: float | None
    instances: bool = False
    pulls_pool: bool = False
    label_loss: Callable[[ScoredLabels], Float[Tensor, " label"]] | None = None
    positive_sampling: Literal["uniform", "propensity"] = "uniform"
    clusters: Literal["none", "growing", "whole"] = "none"
    label_inputs: Literal["text", "enriched"] = "enriched"
    head: Callable[[int, int, Options], Head] | None = None
    flags: frozenset[str] = frozenset()
    tuned: bool = False

    def mined(self, asked: int | None) -> int | None:
        """Mined negatives a query: as many as were asked for, or by default."""
        return self.hard_negatives if asked is None else asked
