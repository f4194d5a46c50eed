"""DEXML: decoupled softmax over the whole label space, or over the batch's labels and mined negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from trainer.methods.scored import Scored


class DexmlOptions(MethodOptions):
    """DEXML has no flags of its own."""


def _loss(scored: Scored, _: DexmlOptions) -> Float[Tensor, " query"]:
    from trainer import losses

    return losses.decoupled_softmax(scored.labels[0], scored.positives, scored.relevant, scored.ranks)


METHOD = Method(name="dexml", options=DexmlOptions, loss=_loss, hard_negatives=None, positives=0, temperature=0.05)
