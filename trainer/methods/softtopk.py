"""SoftTop-k (DEXML): move each true label into the top k. Pool and defaults are those of `dexml`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydantic import Field

from recollect.trainer.methods import dexml
from recollect.trainer.methods.method import MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


class SoftTopKOptions(MethodOptions):
    """The flags of SoftTop-k. The paper trains for P@5 and with alpha 2."""

    softtopk_k: int = Field(5, ge=1, description="k, the number of labels at the top")
    softtopk_alpha: float = Field(2.0, gt=0, description="alpha, the sharpness of the border of the top k")


def loss(scored: Scored, options: SoftTopKOptions) -> Float[Tensor, " query"]:
    """Move each positive into the top k keys of its query (DEXML, Eq. 6 and 7).

    mean over l in T_i of  -log SoftTop-k(s_i)_l

    SoftTop-k leaves out the true labels that were not sampled, so that they take no place in the top k (DEXML's code).
    """
    from recollect.trainer.methods.log_soft_top_k import log_soft_top_k

    (scores,) = scored.scores
    left_out = scored.relevant & ~scored.positives
    k, alpha = options.softtopk_k, options.softtopk_alpha
    return scored.mean(-log_soft_top_k(scores, k, alpha, scored.ranks, left_out=left_out))


METHOD = dataclasses.replace(dexml.METHOD, options=SoftTopKOptions, loss=loss)
