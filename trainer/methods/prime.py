"""PRIME: triplets of queries and label prototypes, and of queries and label texts, in batches of similar queries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from recollect.trainer.errors import TrainingError
from recollect.trainer.methods.method import Method, SymmetricOptions
from recollect.trainer.settings import Listed, NotEmpty, Positive, PrototypeToken, TripletKind

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.distributed import Ranks
    from recollect.trainer.heads.prototypes import Prototypes
    from recollect.trainer.methods.losses import Scored, ScoredLabels

# Number of labels that share a free vector, at least.
_LABELS_PER_FREE = 2


class PrimeOptions(SymmetricOptions):
    """The flags of PRIME."""

    prototype: Annotated[list[PrototypeToken], *Listed, NotEmpty] = Field(
        ["text", "free", "centroid"], description="prime: parts of a label's prototype"
    )
    bank: int | None = Field(
        None,
        ge=1,
        description="prime: number of free vectors; unset: a power of two, so that 2 or 3 labels share each vector",
    )
    margin: Annotated[tuple[Positive, Positive], *Listed] = Field(
        (0.1, 0.3),
        description="prime: lower and upper bound of the triplet margin; equal bounds give a constant margin",
    )
    triplets: TripletKind = Field(
        "weighted",
        description="prime: weighted mean of the hardest triplets, or sum of all triplets as in the paper (sum)",
    )
    text_loss: CliImplicitFlag[bool] = Field(
        True, description="prime: also train queries to find label texts, not only prototypes"
    )
    regulariser: Literal["released", "printed"] = Field(
        "released",
        description="prime: released: hinges with margin .3 over the 100 hardest negatives; printed: the paper's Eq. 6 "
        "and 7, all negatives and no hinge",
    )
    regulariser_weight: float = Field(
        0.1,
        ge=0,
        description="prime: weight of the term that makes prototypes better than label texts by a margin; 0: no term",
    )

    def contradictions(self) -> Iterator[str]:
        tokens, (low, high) = self.prototype, self.margin
        if len(set(tokens)) < len(tokens):
            yield f"--prototype: expected each part only once, found {','.join(tokens)}; remove the repetition"
        if tokens == ["free"]:
            yield (
                "--prototype free: expected a part that differs between labels of a cluster, found none; "
                "add text or centroid"
            )
        if "bank" in self.model_fields_set and "free" not in tokens:
            yield f"--bank: expected free vectors in prototypes, found --prototype {','.join(tokens)}; omit the flag"
        if "regulariser" in self.model_fields_set and not self.regulariser_weight:
            yield "--regulariser: expected --regulariser-weight above 0, found 0; omit one of them"
        if low > high:
            yield f"--margin: expected the lower bound first, found {low:g},{high:g}; swap the bounds"

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
        regulariser = {"released": losses.prototype_regulariser, "printed": losses.printed_regulariser}
        loss = loss + options.regulariser_weight * regulariser[options.regulariser](
            prototypes, texts, scored.positives, scored.relevant, ranks=scored.ranks
        )
    return loss


def _label_loss(scored: ScoredLabels, options: PrimeOptions) -> Float[Tensor, " label"]:
    """L(texts, queries)."""
    return _triplets(scored.queries[1], scored, options)


def _triplets(
    view: Float[Tensor, "row key"], scored: Scored | ScoredLabels, options: PrimeOptions, *ranks: Ranks
) -> Float[Tensor, " row"]:
    from recollect.trainer.methods import losses

    pairs = scored.positives, scored.relevant
    if options.triplets == "sum":
        return losses.triplet_sum(view, *pairs, options.margin, *ranks)
    return losses.clipped_triplet(view, *pairs, options.margin, *ranks)


def _head(dim: int, labels: int, options: PrimeOptions) -> Prototypes:
    from recollect.trainer.heads.prototypes import Prototypes

    return Prototypes(dim, labels, options.prototype, options.bank or 0)


METHOD = Method(
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
