"""SupconDE: UniDEC's dual encoder without its classifier.

Both views have the same weight, and so have the losses of queries and of
labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from recollect.trainer.methods.method import Method, SymmetricOptions

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from recollect.trainer.distributed import Ranks
    from recollect.trainer.methods.scored import Scored, ScoredLabels

PSL = Literal["pal-n", "pal"]


class SupconOptions(SymmetricOptions):
    """The flags of SupconDE and UniDEC."""

    psl: PSL = Field("pal-n", description="unidec, supcon: mean (pal-n) or sum (pal) over a query's true labels")


def _loss(scored: Scored, options: SupconOptions) -> Float[Tensor, " query"]:
    """Loss of the queries over the labels."""
    mean = _mean_over_views(options.psl, scored.labels, scored.positives, scored.ranks)
    return mean / 2 if options.symmetric else mean


def _label_loss(scored: ScoredLabels, options: SupconOptions) -> Float[Tensor, " label"]:
    """Loss of the labels over the queries."""
    return _mean_over_views(options.psl, scored.queries, scored.positives) / 2


def _mean_over_views(
    psl: PSL, similarities: Float[Tensor, "view row key"], positives: Bool[Tensor, "row key"], *ranks: Ranks
) -> Float[Tensor, " row"]:
    import torch

    from recollect.trainer.methods import losses

    loss = losses.softmax_cross_entropy if psl == "pal-n" else losses.pal
    return torch.stack([loss(view, positives, *ranks) for view in similarities]).mean(dim=0)


METHOD = Method(
    name="supcon",
    options=SupconOptions,
    loss=_loss,
    label_loss=_label_loss,
    hard_negatives=6,
    positives=3,
    pulls_pool=True,
    temperature=1 / 18,
    clusters="whole",
)
