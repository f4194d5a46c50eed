"""UniDEC's losses over picked labels: every view counts alike and, where labels are asked too, so do both sides."""

import torch
from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.methods.method import Scored, ScoredLabels

FLAGS = frozenset({"symmetric", "psl"})

_LOSSES = {"pal-n": losses.softmax_cross_entropy, "pal": losses.pal}


def loss(scored: Scored) -> Float[Tensor, " query"]:
    """Queries over labels."""
    one = _LOSSES[scored.options.psl]
    views = torch.stack([one(view, scored.positives, scored.ranks) for view in scored.labels]).mean(dim=0)
    return views / 2 if scored.options.symmetric else views


def label_loss(scored: ScoredLabels) -> Float[Tensor, " label"]:
    """Labels over queries."""
    one = _LOSSES[scored.options.psl]
    return torch.stack([one(view, scored.positives) for view in scored.queries]).mean(dim=0) / 2
