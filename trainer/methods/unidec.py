"""UniDEC: SupconDE's dual encoder and a classifier learn together, each by half of the loss, and answer together."""

import dataclasses

from trainer.heads.classifier import Classifier
from trainer.methods import supcon

METHOD = dataclasses.replace(supcon.METHOD, name="unidec", head=lambda dim, labels, _: Classifier(dim, labels))
