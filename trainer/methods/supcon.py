"""SupconDE: the dual encoder of UniDEC without its classifier, in batches of similar queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from recollect.trainer.methods.infonce import softmax_cross_entropy
from recollect.trainer.methods.method import Method
from recollect.trainer.methods.prime import SymmetricOptions

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.heads.projection import Projection
    from recollect.trainer.methods.scored import Scored


class SupconOptions(SymmetricOptions):
    """The flags of SupconDE."""

    projection: int = Field(
        0, ge=0, description="dimensions of each view above a layer with tanh, as in the paper; 0: no layer"
    )


def loss(scored: Scored, options: SymmetricOptions) -> Float[Tensor, " query"]:
    """PAL-N of the queries over the labels. The losses of queries and of labels have the same weight."""
    mean = _mean_over_views(scored)
    return mean / 2 if options.symmetric else mean


def label_loss(scored: Scored, _: SymmetricOptions) -> Float[Tensor, " label"]:
    """PAL-N of the labels over the queries."""
    return _mean_over_views(scored) / 2


def _mean_over_views(scored: Scored) -> Float[Tensor, " row"]:
    """The mean of the losses of all views. UniDEC has two: its dual encoder and its classifier."""
    import torch

    return torch.stack([softmax_cross_entropy(scored, view) for view in scored.scores]).mean(dim=0)


def _head() -> type[Projection]:
    from recollect.trainer.heads.projection import Projection

    return Projection


METHOD = Method(
    source="https://arxiv.org/abs/2405.03714",
    options=SupconOptions,
    loss=loss,
    label_loss=label_loss,
    hard_negatives=6,
    positives=3,
    pulls_pool=True,
    temperature=1 / 18,
    clusters="whole",
    head=_head,
    head_shape=lambda _, options: {"projection": options.projection},
    head_option="projection",
    without_table=lambda _: "--method supcon",
)
