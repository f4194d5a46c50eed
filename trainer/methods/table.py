"""All methods without triplets: the row of each one, with its loss, its head and its flags."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from recollect.trainer.methods.method import Method, MethodOptions, SymmetricOptions
from recollect.trainer.settings import ClassifierKeys

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from recollect.trainer.distributed import Ranks
    from recollect.trainer.heads.classifier import Classifier
    from recollect.trainer.heads.ova import OvaClassifier
    from recollect.trainer.heads.projection import Projection
    from recollect.trainer.methods.losses import Scored, ScoredLabels


# ---- RAE-XMC ----


def _rae_loss(scored: Scored, _: MethodOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.rae(
        scored.labels[0], scored.positives, scored.relevant, scored.instances, scored.disjoint_instances, scored.ranks
    )


# The pool holds the batch's labels, mined negatives and the batch's instances, like the keys of a memory.
RAE = Method(
    name="rae", options=MethodOptions, loss=_rae_loss, instances=True, hard_negatives=2, positives=1, temperature=0.04
)


# ---- DEXML: decoupled softmax and SoftTop-k, over all labels, or over batch labels and mined negatives ----


class SoftTopKOptions(MethodOptions):
    """The flags of SoftTop-k. The paper trains for P@5 and with alpha 2."""

    softtopk_k: int = Field(5, ge=1, description="softtopk: k, the number of labels at the top")
    softtopk_alpha: float = Field(2.0, gt=0, description="softtopk: alpha, the sharpness of the border of the top k")


def _decoupled_loss(scored: Scored, _: MethodOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.decoupled_softmax(scored.labels[0], scored.positives, scored.relevant, scored.ranks)


def _soft_top_k_loss(scored: Scored, options: SoftTopKOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.soft_top_k_loss(
        scored.labels[0], scored.positives, scored.relevant, options.softtopk_k, options.softtopk_alpha, scored.ranks
    )


DEXML = Method(
    name="dexml", options=MethodOptions, loss=_decoupled_loss, hard_negatives=None, positives=0, temperature=0.05
)
# Moves each true label into the top k.
SOFT_TOP_K = dataclasses.replace(DEXML, name="softtopk", options=SoftTopKOptions, loss=_soft_top_k_loss)


# ---- UniDEC, and SupconDE: its dual encoder without its classifier ----


class SupconOptions(SymmetricOptions):
    """The flags of SupconDE."""

    projection: int = Field(
        0,
        ge=0,
        description="unidec, supcon: dimensions of each view above a layer with tanh, as in the paper; 0: no layer",
    )


class UnidecOptions(SupconOptions):
    """The flags of UniDEC."""

    classifier_norm: CliImplicitFlag[bool] = Field(
        True, description="unidec: train the classifier with unit vectors; the paper does not normalise them"
    )


def _pal_loss(scored: Scored, options: SymmetricOptions) -> Float[Tensor, " query"]:
    """Loss of the queries over the labels. The losses of queries and of labels have the same weight."""
    mean = _mean_over_views(scored.labels, scored.positives, scored.ranks)
    return mean / 2 if options.symmetric else mean


def _pal_label_loss(scored: ScoredLabels, _: SymmetricOptions) -> Float[Tensor, " label"]:
    """Loss of the labels over the queries."""
    return _mean_over_views(scored.queries, scored.positives) / 2


def _mean_over_views(
    similarities: Float[Tensor, "view row key"], positives: Bool[Tensor, "row key"], *ranks: Ranks
) -> Float[Tensor, " row"]:
    """The mean of the losses of all views. UniDEC has two: its dual encoder and its classifier."""
    import torch

    from recollect.trainer.methods import losses

    each = [losses.softmax_cross_entropy(view, positives, *ranks) for view in similarities]
    return torch.stack(each).mean(dim=0)


def _projection(dim: int, _: int, options: SupconOptions) -> Projection:
    from recollect.trainer.heads.projection import Projection

    return Projection(dim, options.projection)


def _classifier(dim: int, labels: int, options: UnidecOptions) -> Classifier:
    from recollect.trainer.heads.classifier import Classifier

    return Classifier(dim, labels, options.classifier_norm, options.projection)


SUPCON = Method(
    name="supcon",
    options=SupconOptions,
    loss=_pal_loss,
    label_loss=_pal_label_loss,
    hard_negatives=6,
    positives=3,
    pulls_pool=True,
    temperature=1 / 18,
    clusters="whole",
    head=_projection,
    head_option="projection",
)
UNIDEC = dataclasses.replace(SUPCON, name="unidec", options=UnidecOptions, head=_classifier, head_option=None)


# ---- InfoNCE: the most common way to train a dual encoder, one positive for each query against the batch's labels ----


def _softmax_loss(scored: Scored, _: MethodOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.softmax_cross_entropy(scored.labels[0], scored.positives, scored.ranks)


INFONCE = Method(
    name="infonce", options=MethodOptions, loss=_softmax_loss, hard_negatives=0, positives=1, temperature=0.05
)


# ---- BCE: one binary classification for each of all labels. DEXML calls this baseline OvA-BCE. ----
# ---- OvA: the same loss on a classifier with one weight vector for each label, a baseline of RAE-XMC and DEXML. ----


class OvaOptions(MethodOptions):
    """The flags of a classifier with one vector for each label."""

    classifier_keys: ClassifierKeys = Field(
        "alone", description="ova, ngame: key of a label: its classifier's vector (alone), or joined to its text vector"
    )


def _binary_loss(scored: Scored, _: MethodOptions) -> Float[Tensor, " query"]:
    from recollect.trainer.methods import losses

    return losses.binary_cross_entropy(scored.labels[0], scored.relevant, scored.ranks)


def ova_classifier(dim: int, labels: int, options: OvaOptions) -> OvaClassifier:
    from recollect.trainer.heads.ova import OvaClassifier

    return OvaClassifier(dim, labels, options.classifier_keys)


BCE = dataclasses.replace(DEXML, name="bce", loss=_binary_loss, pulls_pool=True)
# With the encoder, it is like Renee.
OVA = dataclasses.replace(BCE, name="ova", options=OvaOptions, label_inputs="text", head=ova_classifier)
