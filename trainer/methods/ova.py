"""OvA: one binary classification for each label, over the whole label space. The baseline of DEXML and RAE-XMC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


class OvaOptions(MethodOptions):
    """OvA has no flags of its own."""


def _loss(scored: Scored, _: OvaOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.binary_cross_entropy(scored.labels[0], scored.relevant, scored.ranks)


METHOD = Method(name="ova", options=OvaOptions, loss=_loss, hard_negatives=None, positives=0, temperature=0.05)
