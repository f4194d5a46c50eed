"""UniDEC: SupconDE's dual encoder and a classifier.

Each of the two gets half of the loss, and both take part in answers to queries.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from recollect.trainer.methods import supcon
from recollect.trainer.methods.method import SymmetricOptions

if TYPE_CHECKING:
    from recollect.trainer.heads.classifier import Classifier


class UnidecOptions(SymmetricOptions):
    """The flags of UniDEC."""

    classifier_norm: CliImplicitFlag[bool] = Field(
        True, description="unidec: train the classifier with unit vectors; the paper does not normalise them"
    )
    projection: int = Field(
        0, ge=0, description="unidec: dimensions of both views above a layer with tanh, as in the paper; 0: no layer"
    )


def _head(dim: int, labels: int, options: UnidecOptions) -> Classifier:
    from recollect.trainer.heads.classifier import Classifier

    return Classifier(dim, labels, options.classifier_norm, options.projection)


METHOD = dataclasses.replace(supcon.METHOD, name="unidec", options=UnidecOptions, head=_head)
