"""NGAME's classifier: triplets of queries and a trained vector for each label.

On PRIME's trained and frozen encoder, it is PRIME's second stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.trainer.methods import ova, prime
from recollect.trainer.methods.method import Method

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.methods.scored import Scored


class NgameOptions(prime.TripletOptions, ova.OvaOptions):
    """The flags of NGAME's classifier."""


def loss(scored: Scored, options: NgameOptions) -> Float[Tensor, " query"]:
    """L(queries, vectors of the classifier)."""
    return prime.triplets(scored, scored.scores[0], options)


METHOD = Method(
    source="https://arxiv.org/abs/2410.20401",
    options=NgameOptions,
    loss=loss,
    hard_negatives=0,
    positives=3,
    pulls_pool=True,
    temperature=None,
    clusters="growing",
    label_inputs="text",
    head=ova.METHOD.head,
    head_shape=ova.METHOD.head_shape,
)
