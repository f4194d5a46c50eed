"""The losses: from the similarities of queries and keys to one number a query.

Notation: s are inner products of unit vectors divided by the temperature (PRIME's have none); P_i are all true labels
of query i that the pool of keys holds ("relevant"), T_i those of them that this visit pulls closer ("positives"). A
loss averages over T_i, so that a query weighs the same however many labels it has, and so that the expectation over one
sampled positive is the loss over all of them; a query without positives has loss 0.

Where several processes share a pool, each holds some of its columns: the functions give this process's part of each
query's loss, and the parts add up (`Ranks`).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trainer.ranks import ALONE, Ranks

# Added to a denominator, e to this power is 0 in every precision; unlike -inf it never becomes a NaN.
_NOTHING = -1e9

# Halvings of the interval that holds SoftTop-k's threshold (DEXML, appendix B.7).
_BISECTIONS = 32

# How sharply the hardest violators of a margin outweigh the others: the temperature of their softmax.
_SHARPNESS = 0.1

# How far a key is in the top k where there are no more than k keys: sigmoid(10).
_WHOLE = 0.99995


def softmax_cross_entropy(
    scores: Float[Tensor, "query key"], positives: Bool[Tensor, "query key"], ranks: Ranks = ALONE
) -> Float[Tensor, " query"]:
    """Pull each positive against the whole pool, the query's other positives included.

    mean over l in T_i of  -log( e^{s_il} / sum_m e^{s_im} )

    With one positive a query this is InfoNCE (van den Oord et al., 2018); with all of them, the softmax loss that
    DEXML (Eq. 4) sets out from.

    Args:
        scores: Similarities over tau.
        positives: T_i.
        ranks: The processes that share the pool.
    """
    everything = ranks.log_sum_exp(_log_sum_exp(scores, torch.ones_like(positives)))
    return _mean_over(positives, everything[:, None] - scores, ranks)


def pal(
    scores: Float[Tensor, "query key"], positives: Bool[Tensor, "query key"], ranks: Ranks = ALONE
) -> Float[Tensor, " query"]:
    """Pull each positive against the whole pool, and add up: a query with many labels weighs more (UniDEC's PAL).

    sum over l in T_i of  -log( e^{s_il} / sum_m e^{s_im} )

    Its normalised form, PAL-N, divides by |T_i|: `softmax_cross_entropy` over every true label of the pool. UniDEC
    finds that better.

    Args:
        scores: Similarities over tau.
        positives: T_i; UniDEC counts every true label that the pool holds, whoever drew it.
        ranks: The processes that share the pool.
    """
    everything = ranks.log_sum_exp(_log_sum_exp(scores, torch.ones_like(positives)))
    return (everything[:, None] - scores).masked_fill(~positives, 0).sum(dim=1)


def decoupled_softmax(
    scores: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    ranks: Ranks = ALONE,
) -> Float[Tensor, " query"]:
    """Pull each positive against the negatives alone: other positives stay out of its denominator (DEXML, Eq. 5).

    mean over l in T_i of  -log( e^{s_il} / ( e^{s_il} + sum_{m not in P_i} e^{s_im} ) )

    Args:
        scores: Similarities over tau.
        positives: T_i, one sampled or all.
        relevant: P_i; holds the positives.
        ranks: The processes that share the pool.
    """
    negatives = ranks.log_sum_exp(_log_sum_exp(scores, ~relevant))
    return _mean_over(positives, torch.logaddexp(scores, negatives[:, None]) - scores, ranks)


def rae(
    scores: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    instance_scores: Float[Tensor, "query instance"],
    strangers: Bool[Tensor, "query instance"],
    ranks: Ranks = ALONE,
) -> Float[Tensor, " query"]:
    """Pull each positive against negative labels and against instances that share no label (RAE-XMC, Eq. 10).

    mean over l in T_i of  -log( e^{s_il} / ( e^{s_il} + sum_{m not in P_i} e^{s_im} + sum_{x' in Q_i} e^{s_ix'} ) )

    Args:
        scores: Similarities of queries and labels, over tau.
        positives: T_i; the paper samples one.
        relevant: P_i; holds the positives.
        instance_scores: Similarities of queries and the batch's instances, over tau.
        strangers: Q_i, the instances that share no label with query i; never i itself.
        ranks: The processes that share labels and instances.
    """
    labels = _log_sum_exp(scores, ~relevant)
    instances = _log_sum_exp(instance_scores, strangers)
    negatives = ranks.log_sum_exp(torch.logaddexp(labels, instances))
    return _mean_over(positives, torch.logaddexp(scores, negatives[:, None]) - scores, ranks)


def soft_top_k_loss(
    scores: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    k: int,
    alpha: float = 2.0,
    ranks: Ranks = ALONE,
) -> Float[Tensor, " query"]:
    """Pull every positive into the top k (DEXML, Eq. 6 and 7).

    mean over l in T_i of  -log SoftTop-k(s_i)_l
    """
    return _mean_over(positives, -log_soft_top_k(scores, k, alpha, ranks), ranks)


def log_soft_top_k(
    scores: Float[Tensor, "query key"], k: int, alpha: float = 2.0, ranks: Ranks = ALONE
) -> Float[Tensor, "query key"]:
    """A smooth indicator of being among the k best, in logs: log sigmoid(alpha (s + t)), where t makes the sum k.

    DEXML, Eq. 7 and appendix B.7; the gradient goes through t as well.

    Args:
        scores: Similarities over tau.
        k: At least 1; a pool of k keys or fewer is in the top k as a whole.
        alpha: Sharpness; the paper takes 2.
        ranks: The processes that share the pool.
    """
    logs: Tensor = _LogSoftTopK.apply(scores, k, alpha, ranks)  # type: ignore[no-untyped-call]
    return logs


class _LogSoftTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: int, alpha: float, ranks: Ranks) -> Tensor:
        # n keys as good as the best reach k at the low end, n as bad as the worst at the high one.
        keys = ranks.sum(scores.new_tensor(scores.shape[1]))
        edge = torch.logit((k / keys).clamp_max(_WHOLE)) / alpha
        low = -ranks.largest(_largest(scores)) + edge
        high = ranks.largest(_largest(-scores)) + edge
        for _ in range(_BISECTIONS):
            threshold = (low + high) / 2
            too_many = ranks.sum(torch.sigmoid(alpha * (scores + threshold)).sum(dim=1, keepdim=True)) > k
            low, high = torch.where(too_many, low, threshold), torch.where(too_many, threshold, high)
        shifted = alpha * (scores + (low + high) / 2)
        ctx.save_for_backward(torch.sigmoid(shifted))
        ctx.alpha, ctx.ranks = alpha, ranks
        return torch.nn.functional.logsigmoid(shifted)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        u = gradients[0] * ctx.alpha * (1 - inside)  # through s
        v = ctx.alpha * inside * (1 - inside)  # dt/ds_m = -v_m / sum v, as the sum stays k
        sum_u, sum_v = (ctx.ranks.sum(part.sum(dim=1, keepdim=True)) for part in (u, v))
        return u - v * sum_u / sum_v.clamp_min(torch.finfo(v.dtype).tiny), None, None, None


def clipped_triplet(
    scores: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    margin: tuple[float, float] = (0.1, 0.3),
    hardest: int = 100,
    ranks: Ranks = ALONE,
) -> Float[Tensor, " query"]:
    """Keep each positive ahead of the hardest negatives by a margin that follows how far ahead it is (PRIME, Eq. 3).

    mean over p in T_i of  sum over n of  w_n v_n,    v_n = max(0, s_in - s_ip + m),    m = clamp(|s_ip - s_in|)

    The margin is a constant for the gradient, and so are the weights: a softmax of s_n / .1 over the n that violate,
    v_n > 0. Where the positive leads by something between the bounds, v_n is 0 to the bit.

    Args:
        scores: Similarities as they are.
        positives: T_i.
        relevant: P_i; holds the positives.
        margin: Bounds of m; where they are equal it is a fixed margin.
        hardest: Negatives of a query that are looked at, those of the greatest similarity.
        ranks: The processes that share the pool.
    """
    negatives = ranks.top_k(_top_k(scores.masked_fill(relevant, _NOTHING), hardest), hardest)
    query, key = positives.nonzero(as_tuple=True)
    ahead = scores[query, key][:, None] - negatives[query]
    violations = torch.relu(ahead.detach().abs().clamp(*margin) - ahead)
    violates = (violations > 0) & (negatives[query] > _NOTHING)
    logits = (negatives[query].detach() / _SHARPNESS).masked_fill(~violates, _NOTHING)
    weights = torch.softmax(logits, dim=1).masked_fill(~violates, 0)
    losses = scores.new_zeros(len(scores)).index_add(0, query, (weights * violations).sum(dim=1))
    return losses / ranks.sum(positives.sum(dim=1)).clamp_min(1)


def prototype_regulariser(
    to_prototypes: Float[Tensor, "query key"],
    to_texts: Float[Tensor, "query key"],
    positives: Bool[Tensor, "query key"],
    relevant: Bool[Tensor, "query key"],
    margin: float = 0.1,
    ranks: Ranks = ALONE,
) -> Float[Tensor, " query"]:
    """Make a prototype better than its text by a margin: nearer to its queries, farther from all others (PRIME).

    1/2 ( mean over p in T_i of max(0, s_ip - b_ip + m)  +  mean over n not in P_i of max(0, b_in - s_in + m) )

    b are similarities to prototypes, s to texts; each mean is over the terms that are not 0, and 0 where all are. PRIME
    takes the means over a whole batch; here they are a query's own, so that each query weighs the same.

    Args:
        to_prototypes: b, as they are.
        to_texts: s, as they are.
        positives: T_i.
        relevant: P_i; holds the positives.
        margin: m.
        ranks: The processes that share the pool.
    """
    learns = ranks.sum(positives.sum(dim=1)) > 0
    nearer = torch.relu(to_texts - to_prototypes + margin).masked_fill(~positives, 0)
    farther = torch.relu(to_prototypes - to_texts + margin).masked_fill(relevant | ~learns[:, None], 0)
    means = [part.sum(dim=1) / ranks.sum((part > 0).sum(dim=1)).clamp_min(1) for part in (nearer, farther)]
    return (means[0] + means[1]) / 2


def _top_k(scores: Float[Tensor, "query key"], k: int) -> Float[Tensor, "query top"]:
    """The greatest of each row, as many as there are, at most `k`."""
    return scores.topk(min(k, scores.shape[1]), dim=1).values


def _largest(scores: Float[Tensor, "query key"]) -> Float[Tensor, "query 1"]:
    """The greatest of each row; of a share without keys, something that is no other's greatest."""
    if scores.shape[1] == 0:
        return scores.new_full((len(scores), 1), _NOTHING)
    return scores.max(dim=1, keepdim=True).values


def _log_sum_exp(scores: Float[Tensor, "query key"], kept: Bool[Tensor, "query key"]) -> Float[Tensor, " query"]:
    if scores.shape[1] == 0:  # still a function of the scores: every rank must take its part in the way back
        return scores.sum(dim=1) + _NOTHING
    return torch.logsumexp(scores.masked_fill(~kept, _NOTHING), dim=1)


def _mean_over(
    positives: Bool[Tensor, "query key"], losses: Float[Tensor, "query key"], ranks: Ranks
) -> Float[Tensor, " query"]:
    counts = ranks.sum(positives.sum(dim=1)).clamp_min(1)
    return losses.masked_fill(~positives, 0).sum(dim=1) / counts
