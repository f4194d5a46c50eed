"""RAE-XMC: the batch's labels, mined negatives and the batch's instances are the pool, as they are in the memory."""

from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.methods.method import Method, Scored


def _loss(scored: Scored) -> Float[Tensor, " query"]:
    return losses.rae(
        scored.labels[0], scored.positives, scored.relevant, scored.instances, scored.strangers, scored.ranks
    )


METHOD = Method(name="rae", loss=_loss, instances=True, hard_negatives=2, positives=1, temperature=0.04)
