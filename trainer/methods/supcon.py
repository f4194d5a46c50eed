"""SupconDE: UniDEC's dual encoder without its classifier."""

from trainer.methods import psl
from trainer.methods.method import Method

METHOD = Method(
    name="supcon",
    loss=psl.loss,
    label_loss=psl.label_loss,
    hard_negatives=6,
    positives=3,
    pulls_pool=True,
    temperature=1 / 18,
    clusters="whole",
    flags=psl.FLAGS,
)
