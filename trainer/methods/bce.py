"""BCE: one binary classification for each label, over the whole label space. DEXML calls this baseline OvA-BCE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


class BceOptions(MethodOptions):
    """BCE has no flags of its own."""


def _loss(scored: Scored, _: BceOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.binary_cross_entropy(scored.labels[0], scored.relevant, scored.ranks)


METHOD = Method(name="bce", options=BceOptions, loss=_loss, hard_negatives=None, positives=0, temperature=0.05)
