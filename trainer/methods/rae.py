"""RAE-XMC: a softmax over the keys of a memory.

The pool holds the batch's labels, mined negatives and the batch's instances, like the keys of a memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


def loss(scored: Scored, _: MethodOptions) -> Float[Tensor, " query"]:
    """Softmax of each positive over negative labels and over instances that share no label (RAE-XMC, Eq. 10).

    mean over l in T_i of  -log( e^{s_il} / ( e^{s_il} + sum_{m not in P_i} e^{s_im} + sum_{x' in Q_i} e^{s_ix'} ) )

    Q_i are the instances of the batch that share no label with query i. The paper samples one positive.
    """
    (scores,) = scored.scores
    negatives = scored.log_sum_exp((scores, ~scored.relevant), (scored.instances, scored.disjoint_instances))
    return scored.mean(scores.logaddexp(negatives[:, None]) - scores)


METHOD = Method(
    source="https://arxiv.org/abs/2502.10615",
    loss=loss,
    instances=True,
    hard_negatives=2,
    positives=1,
    temperature=0.04,
)
