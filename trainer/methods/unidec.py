"""UniDEC: the loss of `supcon` for a dual encoder and a classifier beside it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from recollect.trainer.methods import supcon

if TYPE_CHECKING:
    from recollect.trainer.heads.classifier import Classifier


class UnidecOptions(supcon.SupconOptions):
    """The flags of UniDEC."""

    classifier_norm: CliImplicitFlag[bool] = Field(
        True, description="train the classifier with unit vectors; the paper does not normalise them"
    )


def _head() -> type[Classifier]:
    from recollect.trainer.heads.classifier import Classifier

    return Classifier


def _head_shape(labels: int, options: UnidecOptions) -> dict[str, Any]:
    return {"labels": labels, "normalised": options.classifier_norm, "projection": options.projection}


METHOD = dataclasses.replace(
    supcon.METHOD,
    options=UnidecOptions,
    head=_head,
    head_shape=_head_shape,
    head_option=None,
    without_table=lambda _: None,
)
