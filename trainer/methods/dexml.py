"""DEXML: decoupled softmax over the whole label space, or over the batch's labels and mined negatives."""

from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.methods.method import Method, Scored


def _loss(scored: Scored) -> Float[Tensor, " query"]:
    return losses.decoupled_softmax(scored.labels[0], scored.positives, scored.relevant, scored.ranks)


METHOD = Method(name="dexml", loss=_loss, hard_negatives=None, positives=0, temperature=0.05)
