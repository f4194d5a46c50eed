"""PRIME: triplets of queries and label prototypes, and of queries and label texts, in batches of near queries."""

from jaxtyping import Float
from torch import Tensor

from trainer import losses
from trainer.heads.prototypes import Prototypes
from trainer.methods.method import Method, Scored, ScoredLabels

_REGULARISER = 0.1  # its weight


def _loss(scored: Scored) -> Float[Tensor, " query"]:
    """L(queries, prototypes) + L(queries, texts) + .1 R."""
    prototypes, texts = scored.labels
    pairs = scored.positives, scored.relevant
    regulariser = losses.prototype_regulariser(prototypes, texts, *pairs, ranks=scored.ranks)
    triplets = [
        losses.clipped_triplet(view, *pairs, margin=scored.options.margin, ranks=scored.ranks)
        for view in (prototypes, texts)
    ]
    return triplets[0] + triplets[1] + _REGULARISER * regulariser


def _label_loss(scored: ScoredLabels) -> Float[Tensor, " label"]:
    """L(texts, queries)."""
    return losses.clipped_triplet(scored.queries[1], scored.positives, scored.relevant, margin=scored.options.margin)


METHOD = Method(
    name="prime",
    loss=_loss,
    label_loss=_label_loss,
    hard_negatives=0,
    positives=3,
    positive_sampling="propensity",
    temperature=None,
    clusters="growing",
    label_inputs="text",  # a prototype has its instances from their centroid
    head=lambda dim, labels, options: Prototypes(dim, labels, options.prototype, options.bank),
    tuned=True,
    flags=frozenset({"symmetric", "margin", "prototype", "bank"}),
)
