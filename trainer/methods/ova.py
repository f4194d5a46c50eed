"""OvA: the loss of `bce` on a classifier with a vector for each label, a baseline of RAE-XMC and DEXML.

With the encoder, it is like Renee.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from recollect.trainer.methods import bce
from recollect.trainer.methods.method import MethodOptions

if TYPE_CHECKING:
    from recollect.trainer.heads.ova import OvaClassifier

ClassifierKeys = Literal["alone", "joined"]


class OvaOptions(MethodOptions):
    """The flags of a classifier with one vector for each label."""

    classifier_keys: ClassifierKeys = Field(
        "alone", description="key of a label: its classifier's vector (alone), or joined to its text vector"
    )


def _head() -> type[OvaClassifier]:
    from recollect.trainer.heads.ova import OvaClassifier

    return OvaClassifier


def _head_shape(labels: int, options: OvaOptions) -> dict[str, Any]:
    return {"labels": labels, "keys": options.classifier_keys}


METHOD = dataclasses.replace(bce.METHOD, options=OvaOptions, label_inputs="text", head=_head, head_shape=_head_shape)
