"""PRIME: triplets of queries and label prototypes, and of queries and label texts, in batches of similar queries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from recollect.core.settings import Listed
from recollect.trainer.errors import TrainingError
from recollect.trainer.methods.method import Method, MethodOptions
from recollect.trainer.settings import NotEmpty, Positive

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from recollect.trainer.heads.prototypes import Prototypes
    from recollect.trainer.methods.scored import Scored

PrototypeToken = Literal["text", "free", "centroid"]

# Number of labels that share a free vector, at least.
_LABELS_PER_FREE = 2
# Temperature of the softmax that weighs the negatives that violate a margin.
_SHARPNESS = 0.1
# Margin of the regulariser in PRIME's code.
_REGULARISER_MARGIN = 0.1


class TripletOptions(MethodOptions):
    """The flags of methods that train with triplets."""

    margin: Annotated[tuple[Positive, Positive], *Listed] = Field(
        (0.1, 0.3), description="lower and upper bound of the triplet margin; equal bounds give a constant margin"
    )
    triplet_negatives: int = Field(
        100, ge=1, description="number of negatives in a query's triplets, the hardest ones of the pool"
    )

    def contradictions(self) -> Iterator[str]:
        low, high = self.margin
        if low > high:
            yield f"--margin: expected the lower bound first, found {low:g},{high:g}; swap the bounds"


class SymmetricOptions(MethodOptions):
    """The flag of methods that also have a loss for labels."""

    symmetric: CliImplicitFlag[bool] = Field(True, description="also train labels to find their queries")


class PrimeOptions(TripletOptions, SymmetricOptions):
    """The flags of PRIME."""

    prototype: Annotated[list[PrototypeToken], *Listed, NotEmpty] = Field(
        ["text", "free", "centroid"], description="parts of a label's prototype"
    )
    bank: int | None = Field(
        None, ge=1, description="number of free vectors; unset: a power of two, so that 2 or 3 labels share each vector"
    )
    text_loss: CliImplicitFlag[bool] = Field(
        True, description="also train queries to find label texts, not only prototypes"
    )
    regulariser_weight: float = Field(
        0.1,
        ge=0,
        description="weight of the term that makes prototypes better than label texts by a margin; 0: no term",
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


def loss(scored: Scored, options: PrimeOptions) -> Float[Tensor, " query"]:
    """L(queries, prototypes) + L(queries, texts) + w R. Options leave out the second term, and choose w."""
    prototypes, texts = scored.scores
    total = triplets(scored, prototypes, options)
    if options.text_loss:
        total = total + triplets(scored, texts, options)
    if options.regulariser_weight:
        total = total + options.regulariser_weight * regulariser(scored, options.triplet_negatives)
    return total


def label_loss(scored: Scored, options: PrimeOptions) -> Float[Tensor, " label"]:
    """L(texts, queries)."""
    return triplets(scored, scored.scores[1], options)


def triplets(scored: Scored, scores: Float[Tensor, "query key"], options: TripletOptions) -> Float[Tensor, " query"]:
    """Triplet loss over the hardest negatives, with a margin that depends on the positive (PRIME, Eq. 3).

    mean over p in T_i of  sum over n of  w_n v_n,    v_n = max(0, s_in - s_ip + m),    m = clamp(|s_ip - s_in|)

    The margin is a constant for the gradient. The weights w are a softmax of s_n / .1 over the negatives with v_n > 0.
    As in PRIME's code, the gradient also flows through the weights. If the similarity of the positive exceeds that of
    the negative by an amount between the bounds, v_n is exactly 0. The paper prints a sum over all positives and
    negatives instead. The code draws one positive at each step, of which this mean is the expected loss.

    Args:
        scores: The similarities of one view, not divided by tau.
        options: The bounds of m, and the number of hardest negatives.
    """
    from recollect.trainer.methods.scored import MASKED

    negatives = scored.top_k(scores.masked_fill(scored.relevant, MASKED), options.triplet_negatives)
    query, key = scored.positives.nonzero(as_tuple=True)
    lead = scores[query, key][:, None] - negatives[query]
    violations = (lead.detach().abs().clamp(*options.margin) - lead).relu()
    violates = (violations > 0) & (negatives[query] > MASKED)
    logits = (negatives[query] / _SHARPNESS).masked_fill(~violates, MASKED)
    weights = logits.softmax(dim=1).masked_fill(~violates, 0)
    losses = scores.new_zeros(len(scores)).index_add(0, query, (weights * violations).sum(dim=1))
    return losses / scored.positive_counts.clamp_min(1)


def regulariser(scored: Scored, hardest: int) -> Float[Tensor, " query"]:
    """Make prototypes better than label texts by a margin: nearer to the label's queries, farther from others (PRIME).

    1/2 ( mean over p in T_i of max(0, s_ip - b_ip + m)  +  mean over n of max(0, b_in - s_in + m) )

    b are similarities to prototypes, s are similarities to label texts, n are the hardest negatives. Each mean is over
    the terms that are not 0; a mean without such terms is 0. PRIME's code takes means over a whole batch. Here the
    means are over one query, so that each query has the same weight. The paper prints the means without the hinges
    (Eq. 6 and 7), and no value of m. The code has .1.

    Args:
        scored: The queries and the keys. The views are b and s, not divided by tau.
        hardest: Number of negatives of a query, taken by highest b; more if several have the lowest of these b.
    """
    from recollect.trainer.methods.scored import MASKED

    to_prototypes, to_texts = scored.scores
    negatives = to_prototypes.detach().masked_fill(scored.relevant, MASKED)
    easiest = scored.top_k(negatives, hardest)[:, -1:]
    left_out = scored.relevant | (negatives < easiest) | (scored.positive_counts == 0)[:, None]
    nearer = (to_texts - to_prototypes + _REGULARISER_MARGIN).relu().masked_fill(~scored.positives, 0)
    farther = (to_prototypes - to_texts + _REGULARISER_MARGIN).relu().masked_fill(left_out, 0)
    return (scored.mean(nearer, nearer > 0) + scored.mean(farther, farther > 0)) / 2


def _head() -> type[Prototypes]:
    from recollect.trainer.heads.prototypes import Prototypes

    return Prototypes


def _head_shape(labels: int, options: PrimeOptions) -> dict[str, Any]:
    return {"labels": labels, "tokens": options.prototype, "bank": options.bank or 0}


METHOD = Method(
    source="https://arxiv.org/abs/2410.20401",
    options=PrimeOptions,
    loss=loss,
    label_loss=label_loss,
    hard_negatives=0,
    positives=3,
    positive_sampling="propensity",
    pulls_pool=True,
    follows_draws=lambda options: "centroid" in options.prototype,  # drawn labels move their centroids
    temperature=None,
    clusters="growing",
    label_inputs="text",  # the centroid in a prototype already contains the instances
    head=_head,
    head_shape=_head_shape,
    without_table=lambda options: None if "free" in options.prototype else f"--prototype {','.join(options.prototype)}",
    tuned=True,
)
