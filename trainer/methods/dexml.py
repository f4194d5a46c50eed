"""DEXML: decoupled softmax over all labels, or over the batch's labels and mined negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


def loss(scored: Scored, _: MethodOptions) -> Float[Tensor, " query"]:
    """Softmax of each positive over the negatives, without the query's other positives (DEXML, Eq. 5).

    mean over l in T_i of  -log( e^{s_il} / ( e^{s_il} + sum_{m not in P_i} e^{s_im} ) )
    """
    (scores,) = scored.scores
    negatives = scored.log_sum_exp((scores, ~scored.relevant))
    return scored.mean(scores.logaddexp(negatives[:, None]) - scores)


METHOD = Method(
    source="https://arxiv.org/abs/2310.10636", loss=loss, hard_negatives=None, positives=0, temperature=0.05
)
