"""The logarithm of SoftTop-k, a smooth indicator of the top k keys (DEXML), with its own gradient."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recollect.trainer.distributed import ALONE, Ranks
from recollect.trainer.methods.scored import MASKED

# Halvings of the interval that contains the threshold (DEXML, appendix B.7).
_BISECTIONS = 32

# SoftTop-k of a key if there are at most k keys: sigmoid(10).
_ALL_IN_TOP_K = 0.99995


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
        k: At least 1. All keys of a pool of at most k keys are in the top k.
        alpha: Sharpness. The paper uses 2.
        left_out: The keys that do not compete: their indicator is 0. None: all keys compete.
    """
    left_out = torch.zeros_like(scores, dtype=torch.bool) if left_out is None else left_out
    logs: Tensor = _LogSoftTopK.apply(scores, left_out, k, alpha, ranks)  # type: ignore[no-untyped-call]
    return logs


class _LogSoftTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, left_out: Tensor, k: int, alpha: float, ranks: Ranks) -> Tensor:
        scores, negated = scores.masked_fill(left_out, MASKED), (-scores).masked_fill(left_out, MASKED)
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


def _row_max(scores: Float[Tensor, "query key"]) -> Float[Tensor, "query 1"]:
    """Return the maximum of each row. For a share without keys, return a number below every score."""
    if scores.shape[1] == 0:
        return scores.new_full((len(scores), 1), MASKED)
    return scores.max(dim=1, keepdim=True).values
