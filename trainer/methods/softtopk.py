"""SoftTop-k (DEXML): pull each true label into the top 5 of all labels, or of batch labels and mined negatives."""

from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.methods.method import Method, MethodOptions, Scored

_K = 5  # the paper trains for P@5


class SoftTopKOptions(MethodOptions):
    """SoftTop-k has no flags of its own."""


def _loss(scored: Scored, _: SoftTopKOptions) -> Float[Tensor, " query"]:
    return losses.soft_top_k_loss(scored.labels[0], scored.positives, _K, ranks=scored.ranks)


METHOD = Method(
    name="softtopk", options=SoftTopKOptions, loss=_loss, hard_negatives=None, positives=0, temperature=0.05
)
