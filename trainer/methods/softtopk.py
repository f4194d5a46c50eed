"""DEXML's SoftTop-k: every true label into the top 5, of the whole label space or of batch labels and mined ones."""

from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.methods.method import Method, Scored

_K = 5  # the paper trains for P@5


def _loss(scored: Scored) -> Float[Tensor, " query"]:
    return losses.soft_top_k_loss(scored.labels[0], scored.positives, _K, ranks=scored.ranks)


METHOD = Method(name="softtopk", loss=_loss, hard_negatives=None, positives=0, temperature=0.05)
