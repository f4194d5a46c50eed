"""SupconDE: UniDEC's dual encoder without its classifier.

Both views have the same weight, and so have the losses of queries and of labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods.method import Method, SymmetricOptions

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from recollect.trainer.distributed import Ranks
    from recollect.trainer.methods.scored import Scored, ScoredLabels


def _loss(scored: Scored, options: SymmetricOptions) -> Float[Tensor, " query"]:
    """Loss of the queries over the labels."""
    mean = _mean_over_views(scored.labels, scored.positives, scored.ranks)
    return mean / 2 if options.symmetric else mean


def _label_loss(scored: ScoredLabels, options: SymmetricOptions) -> Float[Tensor, " label"]:
    """Loss of the labels over the queries."""
    return _mean_over_views(scored.queries, scored.positives) / 2


def _mean_over_views(
    similarities: Float[Tensor, "view row key"], positives: Bool[Tensor, "row key"], *ranks: Ranks
) -> Float[Tensor, " row"]:
    import torch

    from recollect.trainer.methods import losses

    each = [losses.softmax_cross_entropy(view, positives, *ranks) for view in similarities]
    return torch.stack(each).mean(dim=0)


METHOD = Method(
    name="supcon",
    options=SymmetricOptions,
    loss=_loss,
    label_loss=_label_loss,
    hard_negatives=6,
    positives=3,
    pulls_pool=True,
    temperature=1 / 18,
    clusters="whole",
)
