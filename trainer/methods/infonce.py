"""InfoNCE: the most common way to train a dual encoder, one positive for each query against the batch's labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


def softmax_cross_entropy(scored: Scored, scores: Float[Tensor, "query key"]) -> Float[Tensor, " query"]:
    """Softmax cross-entropy of each positive over the whole pool, with the query's other positives as negatives.

    mean over l in T_i of  -log( e^{s_il} / sum_m e^{s_im} )

    With one positive for each query this is InfoNCE (van den Oord et al., 2018). With all positives it is the softmax
    loss from which DEXML starts (Eq. 4). With every true label of the pool, drawn for any query, it is UniDEC's PAL-N.
    """
    return scored.mean(scored.log_sum_exp((scores, None))[:, None] - scores)


def loss(scored: Scored, _: MethodOptions) -> Float[Tensor, " query"]:
    return softmax_cross_entropy(scored, scored.scores[0])


METHOD = Method(source="https://arxiv.org/abs/1807.03748", loss=loss, hard_negatives=0, positives=1, temperature=0.05)
