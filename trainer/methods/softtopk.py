"""SoftTop-k (DEXML): move each true label into the top k of all labels, or of batch labels and mined negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


class SoftTopKOptions(MethodOptions):
    """The flags of SoftTop-k. The paper trains for P@5 and with alpha 2."""

    softtopk_k: int = Field(5, ge=1, description="softtopk: k, the number of labels at the top")
    softtopk_alpha: float = Field(2.0, gt=0, description="softtopk: alpha, the sharpness of the border of the top k")


def _loss(scored: Scored, options: SoftTopKOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.soft_top_k_loss(
        scored.labels[0],
        scored.positives,
        scored.relevant,
        options.softtopk_k,
        options.softtopk_alpha,
        scored.ranks,
    )


METHOD = Method(
    name="softtopk", options=SoftTopKOptions, loss=_loss, hard_negatives=None, positives=0, temperature=0.05
)
