"""The losses: functions from the similarities of queries and keys to one number for each query.

Notation: s are inner products of unit vectors divided by the temperature (PRIME has none). P_i is the set of all true
labels of query i in the pool of keys (argument `relevant`). T_i is the subset of P_i that this step moves closer to
query i (argument `positives`). Most losses are a mean over T_i. So each query has the same weight, however many labels
it has, and the expected loss of one sampled positive equals the loss of all positives. A query without positives has
loss 0.

If several ranks share a pool, each rank has the similarities to its own share of the keys. Each function returns this
rank's part of the loss of each query. The sum over the ranks is the loss (`Ranks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recollect.trainer.distributed import ALONE, Ranks

# A masked score: e to this power is 0 in every precision. Unlike -inf, it never gives NaN.
_MASKED = -1e9

# Halvings of the interval that contains SoftTop-k's threshold (DEXML, appendix B.7).
_BISECTIONS = 32

# Temperature of the softmax that weighs the negatives that violate a margin.
_SHARPNESS = 0.1

# SoftTop-k of a key if there are at most k keys: sigmoid(10).
_ALL_IN_TOP_K = 0.99995


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


def softmax_cross_entropy(
    scores: Float[Tensor, "query key"], positives: Bool[Tensor, "query key"], ranks: Ranks = ALONE
) -> Float[Tensor, " query"]:
    """Softmax cross-entropy of each positive over the whole pool, with the query's other positives as negatives.

    mean over l in T_i of  -log( e^{s_il} / sum_m e^{s_im} )

    With one positive for each query this is InfoNCE (van den Oord et al., 2018). With all positives it is the softmax
    loss from which DEXML starts (Eq. 4). With every true label of the pool, drawn for any query, it is UniDEC's PAL-N.

    Args:
        scores: Similarities divided by tau.
        positives: T_i.
        ranks: The processes that share the pool.
    """
    denominator = ranks.log_sum_exp(_log_sum_exp(scores, torch.ones_like(positives)))
    return _over(positives, denominator[:, None] - scores, ranks)


def decoupled_softmax(
    scores: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    ranks: Ranks = ALONE,
) -> Float[Tensor, " query"]:
    """Softmax of each positive over the negatives, without the query's other positives (DEXML, Eq. 5).

    mean over l in T_i of  -log( e^{s_il} / ( e^{s_il} + sum_{m not in P_i} e^{s_im} ) )

    Args:
        scores: Similarities divided by tau.
        positives: T_i, one sampled or all.
        relevant: P_i, which includes T_i.
        ranks: The processes that share the pool.
    """
    negatives = ranks.log_sum_exp(_log_sum_exp(scores, ~relevant))
    return _over(positives, torch.logaddexp(scores, negatives[:, None]) - scores, ranks)


def binary_cross_entropy(
    scores: Float[Tensor, "query key"], relevant: Bool[Tensor, "query key"], ranks: Ranks = ALONE
) -> Float[Tensor, " query"]:
    """Binary cross-entropy of each key, one versus all (OvA-BCE: DEXML, Eq. 2).

    sum over all keys l of  log(1 + e^{s_il}) - [l in P_i] s_il

    Args:
        scores: Similarities divided by tau.
        relevant: P_i.
        ranks: The processes that share the pool.
    """
    has_positives = ranks.all_reduce_sum(relevant.sum(dim=1)) > 0
    entropies = torch.nn.functional.softplus(scores) - scores.masked_fill(~relevant, 0)
    return entropies.masked_fill(~has_positives[:, None], 0).sum(dim=1)


def rae(
    scores: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    instance_scores: Float[Tensor, "query instance"],
    disjoint_instances: Bool[Tensor, "query instance"],
    ranks: Ranks = ALONE,
) -> Float[Tensor, " query"]:
    """Softmax of each positive over negative labels and over instances that share no label (RAE-XMC, Eq. 10).

    mean over l in T_i of  -log( e^{s_il} / ( e^{s_il} + sum_{m not in P_i} e^{s_im} + sum_{x' in Q_i} e^{s_ix'} ) )

    Args:
        scores: Similarities of queries and labels, divided by tau.
        positives: T_i. The paper samples one.
        relevant: P_i, which includes T_i.
        instance_scores: Similarities of queries and the batch's instances, divided by tau.
        disjoint_instances: Q_i, the instances that share no label with query i. Query i itself is never in Q_i.
        ranks: The processes that share labels and instances.
    """
    labels = _log_sum_exp(scores, ~relevant)
    instances = _log_sum_exp(instance_scores, disjoint_instances)
    negatives = ranks.log_sum_exp(torch.logaddexp(labels, instances))
    return _over(positives, torch.logaddexp(scores, negatives[:, None]) - scores, ranks)


def soft_top_k_loss(
    scores: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    k: int,
    alpha: float = 2.0,
    ranks: Ranks = ALONE,
) -> Float[Tensor, " query"]:
    """Move each positive into the top k keys of its query (DEXML, Eq. 6 and 7).

    mean over l in T_i of  -log SoftTop-k(s_i)_l

    SoftTop-k leaves out the true labels that were not sampled, so that they take no place in the top k (DEXML's code).

    Args:
        scores: Similarities divided by tau.
        positives: T_i, some sampled or all.
        relevant: P_i, which includes T_i.
        k: As for `log_soft_top_k`.
        alpha: As for `log_soft_top_k`.
        ranks: The processes that share the pool.
    """
    return _over(positives, -log_soft_top_k(scores, k, alpha, ranks, left_out=relevant & ~positives), ranks)


def log_soft_top_k(
    scores: Float[Tensor, "query key"],
    k: int,
    alpha: float = 2.0,
    ranks: Ranks = ALONE,
    *,
    left_out: Bool[Tensor, "query key"] | None = None,
) -> Float[Tensor, "query key"]:
    """Log of a smooth indicator of the top k: log sigmoid(alpha (s + t)), where t makes the sum of the sigmoids k.

    DEXML, Eq. 7 and appendix B.7. The gradient includes the derivative of t.

    Args:
        scores: Similarities divided by tau.
        k: At least 1. All keys of a pool of at most k keys are in the top k.
        alpha: Sharpness. The paper uses 2.
        ranks: The processes that share the pool.
        left_out: The keys that do not compete: their indicator is 0. None: all keys compete.
    """
    left_out = torch.zeros_like(scores, dtype=torch.bool) if left_out is None else left_out
    logs: Tensor = _LogSoftTopK.apply(scores, left_out, k, alpha, ranks)  # type: ignore[no-untyped-call]
    return logs


class _LogSoftTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, left_out: Tensor, k: int, alpha: float, ranks: Ranks) -> Tensor:
        scores, negated = scores.masked_fill(left_out, _MASKED), (-scores).masked_fill(left_out, _MASKED)
        # At `low`, the sigmoids would sum to k if all n keys had the best score. At `high`, they would sum to k if all
        # n keys had the worst score.
        keys = ranks.all_reduce_sum((~left_out).to(scores.dtype).sum(dim=1, keepdim=True))
        edge = torch.logit((k / keys).clamp_max(_ALL_IN_TOP_K)) / alpha
        low = -ranks.all_reduce_max(_row_max(scores)) + edge
        high = ranks.all_reduce_max(_row_max(negated)) + edge
        for _ in range(_BISECTIONS):
            threshold = (low + high) / 2
            too_many = ranks.all_reduce_sum(torch.sigmoid(alpha * (scores + threshold)).sum(dim=1, keepdim=True)) > k
            low, high = torch.where(too_many, low, threshold), torch.where(too_many, threshold, high)
        shifted = alpha * (scores + (low + high) / 2)
        ctx.save_for_backward(torch.sigmoid(shifted))
        ctx.alpha, ctx.ranks = alpha, ranks
        return torch.nn.functional.logsigmoid(shifted)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (inside,) = ctx.saved_tensors
        u = gradients[0] * ctx.alpha * (1 - inside)  # derivative by s with constant t
        v = ctx.alpha * inside * (1 - inside)  # dt/ds_m = -v_m / sum v, as the sum stays k
        sum_u, sum_v = (ctx.ranks.all_reduce_sum(part.sum(dim=1, keepdim=True)) for part in (u, v))
        return u - v * sum_u / sum_v.clamp_min(torch.finfo(v.dtype).tiny), None, None, None, None


def clipped_triplet(
    scores: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    margin: tuple[float, float] = (0.1, 0.3),
    ranks: Ranks = ALONE,
    *,
    hardest: int = 100,
) -> Float[Tensor, " query"]:
    """Triplet loss over the hardest negatives, with a margin that depends on the positive (PRIME, Eq. 3).

    mean over p in T_i of  sum over n of  w_n v_n,    v_n = max(0, s_in - s_ip + m),    m = clamp(|s_ip - s_in|)

    The margin is a constant for the gradient. The weights w are a softmax of s_n / .1 over the negatives with v_n > 0.
    As in PRIME's code, the gradient also flows through the weights. If the similarity of the positive exceeds that of
    the negative by an amount between the bounds, v_n is exactly 0. The paper prints a sum over all positives and
    negatives instead. The code draws one positive at each step, of which this mean is the expected loss.

    Args:
        scores: Similarities, not divided by tau.
        positives: T_i.
        relevant: P_i, which includes T_i.
        margin: Lower and upper bound of m. With equal bounds, m is constant.
        ranks: The processes that share the pool.
        hardest: Number of negatives of a query, taken by highest similarity.
    """
    negatives = ranks.top_k(_top_k(scores.masked_fill(relevant, _MASKED), hardest), hardest)
    query, key = positives.nonzero(as_tuple=True)
    lead = scores[query, key][:, None] - negatives[query]
    violations = torch.relu(lead.detach().abs().clamp(*margin) - lead)
    violates = (violations > 0) & (negatives[query] > _MASKED)
    logits = (negatives[query] / _SHARPNESS).masked_fill(~violates, _MASKED)
    weights = torch.softmax(logits, dim=1).masked_fill(~violates, 0)
    losses = scores.new_zeros(len(scores)).index_add(0, query, (weights * violations).sum(dim=1))
    return losses / ranks.all_reduce_sum(positives.sum(dim=1)).clamp_min(1)


def prototype_regulariser(
    to_prototypes: Float[Tensor, "query key"],
    to_texts: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    margin: float = 0.1,
    ranks: Ranks = ALONE,
    *,
    hardest: int = 100,
) -> Float[Tensor, " query"]:
    """Make prototypes better than label texts by a margin: nearer to the label's queries, farther from others (PRIME).

    1/2 ( mean over p in T_i of max(0, s_ip - b_ip + m)  +  mean over n of max(0, b_in - s_in + m) )

    b are similarities to prototypes, s are similarities to label texts, n are the hardest negatives. Each mean is over
    the terms that are not 0; a mean without such terms is 0. PRIME's code takes means over a whole batch. Here the
    means are over one query, so that each query has the same weight. The paper prints the means without the hinges
    (Eq. 6 and 7), and no value of m. The code has .1.

    Args:
        to_prototypes: b, not divided by tau.
        to_texts: s, not divided by tau.
        positives: T_i.
        relevant: P_i, which includes T_i.
        margin: m.
        ranks: The processes that share the pool.
        hardest: Number of negatives of a query, taken by highest b; more if several have the lowest of these b.
    """
    negatives = to_prototypes.detach().masked_fill(relevant, _MASKED)
    easiest = ranks.top_k(_top_k(negatives, hardest), hardest)[:, -1:]
    has_positives = ranks.all_reduce_sum(positives.sum(dim=1)) > 0
    left_out = relevant | (negatives < easiest) | ~has_positives[:, None]
    nearer = torch.relu(to_texts - to_prototypes + margin).masked_fill(~positives, 0)
    farther = torch.relu(to_prototypes - to_texts + margin).masked_fill(left_out, 0)
    return (_over(nearer > 0, nearer, ranks) + _over(farther > 0, farther, ranks)) / 2


def _top_k(scores: Float[Tensor, "query key"], k: int) -> Float[Tensor, "query top"]:
    """Return the k highest scores of each row, or all if there are fewer."""
    return scores.topk(min(k, scores.shape[1]), dim=1).values


def _row_max(scores: Float[Tensor, "query key"]) -> Float[Tensor, "query 1"]:
    """Return the maximum of each row. For a share without keys, return a number below every score."""
    if scores.shape[1] == 0:
        return scores.new_full((len(scores), 1), _MASKED)
    return scores.max(dim=1, keepdim=True).values


def _log_sum_exp(scores: Float[Tensor, "query key"], mask: Bool[Tensor, "query key"]) -> Float[Tensor, " query"]:
    if scores.shape[1] == 0:  # depends on the scores, because every rank must take part in the backward pass
        return scores.sum(dim=1) + _MASKED
    return torch.logsumexp(scores.masked_fill(~mask, _MASKED), dim=1)


def _over(
    positives: Bool[Tensor, "query key"],
    losses: Float[Tensor, "query key"],
    ranks: Ranks,
) -> Float[Tensor, " query"]:
    """Return this rank's part of the mean of the losses of each query's positives."""
    total = losses.masked_fill(~positives, 0).sum(dim=1)
    return total / ranks.all_reduce_sum(positives.sum(dim=1)).clamp_min(1)
