"""InfoNCE: one positive a query against the batch's labels; the common way to train a dual encoder."""

from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.methods.method import Method, Scored


def _loss(scored: Scored) -> Float[Tensor, " query"]:
    return losses.softmax_cross_entropy(scored.labels[0], scored.positives, scored.ranks)


METHOD = Method(name="infonce", loss=_loss, hard_negatives=0, positives=1, temperature=0.05)
