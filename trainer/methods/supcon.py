"""SupconDE: UniDEC's dual encoder without its classifier. Each view has the same weight, and so has each direction."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from trainer import losses
from trainer.methods.method import Method, Scored, ScoredLabels, SymmetricOptions

PSL = Literal["pal-n", "pal"]

_LOSSES = {"pal-n": losses.softmax_cross_entropy, "pal": losses.pal}


class SupconOptions(SymmetricOptions):
    """The flags of SupconDE and UniDEC."""

    psl: PSL = Field("pal-n", description="unidec, supcon: mean (pal-n) or sum (pal) over a query's true labels")


def _loss(scored: Scored, options: SupconOptions) -> Float[Tensor, " query"]:
    """Queries over labels."""
    loss = _LOSSES[options.psl]
    mean = torch.stack([loss(view, scored.positives, scored.ranks) for view in scored.labels]).mean(dim=0)
    return mean / 2 if options.symmetric else mean


def _label_loss(scored: ScoredLabels, options: SupconOptions) -> Float[Tensor, " label"]:
    """Labels over queries."""
    loss = _LOSSES[options.psl]
    return torch.stack([loss(view, scored.positives) for view in scored.queries]).mean(dim=0) / 2


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
