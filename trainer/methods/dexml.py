"""DEXML: decoupled softmax over the whole label space, or over the batch's labels and mined negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


class DexmlOptions(MethodOptions):
    """The flags of DEXML and SoftTop-k."""

    over_positives: Literal["mean", "sum"] = Field(
        "mean",
        description="dexml, softtopk: mean over a query's true labels, or sum: many labels, more weight",
    )


def _loss(scored: Scored, options: DexmlOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.decoupled_softmax(
        scored.labels[0], scored.positives, scored.relevant, scored.ranks, options.over_positives
    )


METHOD = Method(name="dexml", options=DexmlOptions, loss=_loss, hard_negatives=None, positives=0, temperature=0.05)
