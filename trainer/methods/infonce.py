"""InfoNCE: one positive for each query against the batch's labels.

This is the most common way to train a dual encoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


class InfoNceOptions(MethodOptions):
    """InfoNCE has no flags of its own."""


def _loss(scored: Scored, _: InfoNceOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.softmax_cross_entropy(scored.labels[0], scored.positives, scored.ranks)


METHOD = Method(name="infonce", options=InfoNceOptions, loss=_loss, hard_negatives=0, positives=1, temperature=0.05)
