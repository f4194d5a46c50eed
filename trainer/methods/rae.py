"""RAE-XMC: the pool holds the batch's labels, mined negatives and the batch's instances, like the keys of a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


class RaeOptions(MethodOptions):
    """RAE-XMC has no flags of its own."""


def _loss(scored: Scored, _: RaeOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.rae(
        scored.labels[0], scored.positives, scored.relevant, scored.instances, scored.disjoint_instances, scored.ranks
    )


METHOD = Method(
    name="rae", options=RaeOptions, loss=_loss, instances=True, hard_negatives=2, positives=1, temperature=0.04
)
