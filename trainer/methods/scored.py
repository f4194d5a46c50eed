"""The scores of one training step, from which a loss computes one number for each query.

Notation of the losses: s are inner products of unit vectors divided by the temperature (the triplets have none). P_i is
the set of all true labels of query i in the pool of keys (`relevant`). T_i is the subset of P_i that this step moves
closer to query i (`positives`). Most losses are a mean over T_i. So each query has the same weight, however many labels
it has, and the expected loss of one sampled positive equals the loss of all positives. A query without positives has
loss 0.

If several processes share a pool, each one has the scores of its own share of the keys. A loss returns this process's
part of the loss of each query, and the sum over the processes is the loss. The methods of `Scored` combine the scores
of all processes, so that a loss need not know them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.trainer.distributed import ALONE, Ranks

# A masked score: e to this power is 0 in every precision. Unlike -inf, it never gives NaN.
MASKED = -1e9


@dataclass(frozen=True)
class Scored:
    """Some queries of a batch, compared with this process's share of the pool.

    For the loss of labels, the rows are labels and the keys are all queries of the batch.

    Attributes:
        scores: Similarities divided by tau, in each view.
        positives: T_i.
        relevant: P_i, which includes T_i.
        instances: Similarities to the instances of the batch, divided by tau. The matrix has no columns if the method
            does not use instances as keys.
        disjoint_instances: The instances that share no label with the query. The query itself is not among them.
    """

    scores: Float[Tensor, "view query key"]
    positives: Bool[Tensor, "query key"]
    relevant: Bool[Tensor, "query key"]
    instances: Float[Tensor, "query instance"]
    disjoint_instances: Bool[Tensor, "query instance"]
    numbers: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)
    ranks: Ranks = ALONE

    @functools.cached_property
    def positive_counts(self) -> Int[Tensor, " query"]:
        """The size of T_i."""
        return self.ranks.all_reduce_sum(self.positives.sum(dim=1))

    def mean(
        self, losses: Float[Tensor, "query key"], over: Bool[Tensor, "query key"] | None = None
    ) -> Float[Tensor, " query"]:
        """Return this process's part of the mean over the marked keys, or over the positives; 0 without such keys."""
        marked = self.positives if over is None else over
        counts = self.positive_counts if over is None else self.ranks.all_reduce_sum(over.sum(dim=1))
        return losses.masked_fill(~marked, 0).sum(dim=1) / counts.clamp_min(1)

    def log_sum_exp(
        self, *parts: tuple[Float[Tensor, "query _"], Bool[Tensor, "query _"] | None]
    ) -> Float[Tensor, " query"]:
        """Return the logarithm of the sum of e^score over the marked keys of all parts; None marks all keys."""
        return self.ranks.log_sum_exp(functools.reduce(torch.logaddexp, (_log_sum_exp(*part) for part in parts)))

    def top_k(self, scores: Float[Tensor, "query key"], k: int) -> Float[Tensor, "query top"]:
        """Return the k greatest scores of each row, best first. A smaller pool may fill them with very small ones."""
        return self.ranks.top_k(scores.topk(min(k, scores.shape[1]), dim=1).values, k)


def _log_sum_exp(scores: Float[Tensor, "query key"], mask: Bool[Tensor, "query key"] | None) -> Float[Tensor, " query"]:
    if scores.shape[1] == 0:  # depends on the scores, because every process must take part in the backward pass
        return scores.sum(dim=1) + MASKED
    return torch.logsumexp(scores if mask is None else scores.masked_fill(~mask, MASKED), dim=1)
