"""BCE: one binary classification for each of all labels. DEXML calls this baseline OvA-BCE."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from recollect.trainer.methods import dexml
from recollect.trainer.methods.method import MethodOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


def loss(scored: Scored, _: MethodOptions) -> Float[Tensor, " query"]:
    """Binary cross-entropy of each key, one versus all (DEXML, Eq. 2).

    sum over all keys l of  log(1 + e^{s_il}) - [l in P_i] s_il
    """
    from torch.nn.functional import softplus

    (scores,) = scored.scores
    entropies: Tensor = softplus(scores) - scores.masked_fill(~scored.relevant, 0)
    return entropies.masked_fill((scored.positive_counts == 0)[:, None], 0).sum(dim=1)


METHOD = dataclasses.replace(dexml.METHOD, loss=loss, pulls_pool=True)
