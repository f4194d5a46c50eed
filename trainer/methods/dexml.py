"""DEXML: decoupled softmax over the whole label space, or over the batch's labels and mined negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


def _loss(scored: Scored, options: MethodOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.decoupled_softmax(scored.labels[0], scored.positives, scored.relevant, scored.ranks)


METHOD = Method(name="dexml", options=MethodOptions, loss=_loss, hard_negatives=None, positives=0, temperature=0.05)
