"""UniDEC: SupconDE's dual encoder and a classifier.

Each of the two gets half of the loss, and both take part in answers to queries.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from trainer.methods import supcon

if TYPE_CHECKING:
    from trainer.heads.classifier import Classifier


def _head(dim: int, labels: int, _: supcon.SupconOptions) -> Classifier:
    from trainer.heads.classifier import Classifier

    return Classifier(dim, labels)


METHOD = dataclasses.replace(supcon.METHOD, name="unidec", head=_head)
