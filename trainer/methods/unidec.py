"""UniDEC: SupconDE's dual encoder and a classifier. Each is trained by half of the loss, and both answer queries."""

import dataclasses

from trainer.heads.classifier import Classifier
from trainer.methods import supcon

METHOD = dataclasses.replace(supcon.METHOD, name="unidec", head=lambda dim, labels, _: Classifier(dim, labels))
