"""SoftTop-k (DEXML): move each true label into the top 5 of all labels, or of batch labels and mined negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from trainer.methods.scored import Scored

_K = 5  # the paper trains for P@5


class SoftTopKOptions(MethodOptions):
    """SoftTop-k has no flags of its own."""


def _loss(scored: Scored, _: SoftTopKOptions) -> Float[Tensor, " query"]:
    from trainer import losses

    return losses.soft_top_k_loss(scored.labels[0], scored.positives, _K, ranks=scored.ranks)


METHOD = Method(
    name="softtopk", options=SoftTopKOptions, loss=_loss, hard_negatives=None, positives=0, temperature=0.05
)
