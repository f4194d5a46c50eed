"""UniDEC: a dual encoder and a classifier learn together, each by half of the loss, and answer together."""

from trainer.classifier import Classifier
from trainer.methods import psl
from trainer.methods.method import Method

METHOD = Method(
    name="unidec",
    loss=psl.loss,
    label_loss=psl.label_loss,
    hard_negatives=6,
    positives=3,
    pulls_pool=True,
    temperature=1 / 18,
    clusters="whole",
    head=lambda dim, labels, _: Classifier(dim, labels),
    flags=psl.FLAGS,
)
