"""PRIME: triplets of queries and label prototypes, and of queries and label texts, in batches of similar queries.

The second stage of PRIME is NGAME's classifier: triplets of queries and a trained vector for each label.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from recollect.trainer.errors import TrainingError
from recollect.trainer.methods.method import Method, MethodOptions, SymmetricOptions
from recollect.trainer.methods.table import OvaOptions, ova_classifier
from recollect.trainer.settings import Listed, NotEmpty, Positive, PrototypeToken

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.distributed import Ranks
    from recollect.trainer.heads.prototypes import Prototypes
    from recollect.trainer.methods.losses import Scored, ScoredLabels

# Number of labels that share a free vector, at least.
_LABELS_PER_FREE = 2


class TripletOptions(MethodOptions):
    """The flags of methods that train with triplets."""

    margin: Annotated[tuple[Positive, Positive], *Listed] = Field(
        (0.1, 0.3),
        description="prime, ngame: lower and upper bound of the triplet margin; equal bounds give a constant margin",
    )
    triplet_negatives: int = Field(
        100, ge=1, description="prime, ngame: number of negatives in a query's triplets, the hardest ones of the pool"
    )

    def contradictions(self) -> Iterator[str]:
        low, high = self.margin
        if low > high:
            yield f"--margin: expected the lower bound first, found {low:g},{high:g}; swap the bounds"


class PrimeOptions(TripletOptions, SymmetricOptions):
    """The flags of PRIME."""

    prototype: Annotated[list[PrototypeToken], *Listed, NotEmpty] = Field(
        ["text", "free", "centroid"], description="prime: parts of a label's prototype"
    )
    bank: int | None = Field(
        None,
        ge=1,
        description="prime: number of free vectors; unset: a power of two, so that 2 or 3 labels share each vector",
    )
    text_loss: CliImplicitFlag[bool] = Field(
        True, description="prime: also train queries to find label texts, not only prototypes"
    )
    regulariser_weight: float = Field(
        0.1,
        ge=0,
        description="prime: weight of the term that makes prototypes better than label texts by a margin; 0: no term",
    )

    def contradictions(self) -> Iterator[str]:
        yield from TripletOptions.contradictions(self)
        tokens = self.prototype
        if len(set(tokens)) < len(tokens):
            yield f"--prototype: expected each part only once, found {','.join(tokens)}; remove the repetition"
        if tokens == ["free"]:
            yield (
                "--prototype free: expected a part that differs between labels of a cluster, found none; "
                "add text or centroid"
            )
        if "bank" in self.model_fields_set and "free" not in tokens:
            yield f"--bank: expected free vectors in prototypes, found --prototype {','.join(tokens)}; omit the flag"

    def with_defaults(self, labels: int) -> PrimeOptions:
        if (self.bank or 0) > labels:
            raise TrainingError(
                f"--bank {self.bank}: expected at most {labels:,}, the number of labels; choose a smaller one"
            )
        default = 1 << max(0, int(math.log2(labels / _LABELS_PER_FREE)))
        bank = (self.bank or default) if "free" in self.prototype else 0
        return self.model_copy(update={"bank": bank})


def _loss(scored: Scored, options: PrimeOptions) -> Float[Tensor, " query"]:
    """L(queries, prototypes) + L(queries, texts) + w R. Options leave out the second term, and choose w."""
    from recollect.trainer.methods import losses

    prototypes, texts = scored.labels
    loss = _triplets(prototypes, scored, options, scored.ranks)
    if options.text_loss:
        loss = loss + _triplets(texts, scored, options, scored.ranks)
    if options.regulariser_weight:
        loss = loss + options.regulariser_weight * losses.prototype_regulariser(
            prototypes,
            texts,
            scored.positives,
            scored.relevant,
            ranks=scored.ranks,
            hardest=options.triplet_negatives,
        )
    return loss


def _label_loss(scored: ScoredLabels, options: PrimeOptions) -> Float[Tensor, " label"]:
    """L(texts, queries)."""
    return _triplets(scored.queries[1], scored, options)


def _triplets(
    view: Float[Tensor, "row key"], scored: Scored | ScoredLabels, options: TripletOptions, *ranks: Ranks
) -> Float[Tensor, " row"]:
    from recollect.trainer.methods import losses

    pairs = scored.positives, scored.relevant
    return losses.clipped_triplet(view, *pairs, options.margin, *ranks, hardest=options.triplet_negatives)


def _head(dim: int, labels: int, options: PrimeOptions) -> Prototypes:
    from recollect.trainer.heads.prototypes import Prototypes

    return Prototypes(dim, labels, options.prototype, options.bank or 0)


PRIME = Method(
    name="prime",
    options=PrimeOptions,
    loss=_loss,
    label_loss=_label_loss,
    hard_negatives=0,
    positives=3,
    positive_sampling="propensity",
    pulls_pool=True,
    temperature=None,
    clusters="growing",
    label_inputs="text",  # the centroid in a prototype already contains the instances
    head=_head,
    tuned=True,
)


# ---- NGAME's classifier ----


class NgameOptions(TripletOptions, OvaOptions):
    """The flags of NGAME's classifier."""


def _classifier_loss(scored: Scored, options: NgameOptions) -> Float[Tensor, " query"]:
    """L(queries, vectors of the classifier)."""
    return _triplets(scored.labels[0], scored, options, scored.ranks)


# On PRIME's trained and frozen encoder, it is PRIME's second stage.
NGAME = Method(
    name="ngame",
    options=NgameOptions,
    loss=_classifier_loss,
    hard_negatives=0,
    positives=3,
    pulls_pool=True,
    temperature=None,
    clusters="growing",
    label_inputs="text",
    head=ova_classifier,
)
