"""OvA: the loss BCE on a classifier with one weight vector for each label. RAE-XMC and DEXML have it as a baseline.

On a trained and frozen encoder, it is like the second stage of NGAME and PRIME; with the encoder, like Renee.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydantic import Field

from recollect.trainer.methods import bce
from recollect.trainer.settings import ClassifierKeys

if TYPE_CHECKING:
    from recollect.trainer.heads.ova import OvaClassifier


class OvaOptions(bce.BceOptions):
    """The flags of OvA."""

    classifier_keys: ClassifierKeys = Field(
        "alone", description="ova: key of a label: its classifier's vector (alone), or joined to its text vector"
    )


def _head(dim: int, labels: int, options: OvaOptions) -> OvaClassifier:
    from recollect.trainer.heads.ova import OvaClassifier

    return OvaClassifier(dim, labels, options.classifier_keys)


METHOD = dataclasses.replace(bce.METHOD, name="ova", options=OvaOptions, label_inputs="text", head=_head)
