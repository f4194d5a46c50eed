"""The loss of each method against the formula of its paper, term by term in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.trainer.distributed import ALONE
from recollect.trainer.methods import METHODS, MethodOptions
from recollect.trainer.methods.losses import Scored, ScoredLabels
from tests.trainer.helpers import options
from tests.trainer.test_losses import (
    Pool,
    draw,
    written_decoupled,
    written_rae,
    written_soft_top_k,
    written_softmax,
)
from tests.trainer.test_losses_prime import (
    written_printed_regulariser,
    written_regulariser,
    written_triplet,
    written_triplet_sum,
)

WITH_PAL_N = ["unidec", "supcon"]
VIEWS = {"prime": 2, "unidec": 2}
every_margin = pytest.mark.parametrize("margin", [(0.1, 0.3), (0.2, 0.2)], ids=["clipped", "fixed"])


def drawn(method: str, **shape: Any) -> list[Pool]:
    """Draw a pool for each view.

    All pools have equal positives and different similarities. PRIME's similarities are not divided by tau.
    """
    scale = 1 if METHODS[method].temperature else 1 / 12
    pools = [draw(seed, **{"queries": 8, "keys": 12, "dense": 0.3} | shape) for seed in (10, 11)]
    return [pools[0]._replace(labels=scale * pool.labels) for pool in pools[: VIEWS.get(method, 1)]]


def stacked(pools: list[Pool]) -> Tensor:
    return torch.stack([pool.labels for pool in pools]).requires_grad_()


def loss_and_gradient(method: str, pools: list[Pool], given: MethodOptions) -> tuple[Tensor, Tensor]:
    """Return the loss of queries over labels, and its gradient."""
    similarities = stacked(pools)
    value = METHODS[method].loss(Scored(similarities, *pools[0][1:], ranks=ALONE), given)
    return with_gradient(value, similarities)


def label_loss_and_gradient(method: str, pools: list[Pool], given: MethodOptions) -> tuple[Tensor, Tensor]:
    """Return the loss of labels over queries, and its gradient. The rows of the pools are labels."""
    label_loss, similarities = METHODS[method].label_loss, stacked(pools)
    assert label_loss is not None
    return with_gradient(label_loss(ScoredLabels(similarities, *pools[0][1:3]), given), similarities)


def with_gradient(value: list[Tensor] | Tensor, similarities: Tensor) -> tuple[Tensor, Tensor]:
    value = torch.stack(value) if isinstance(value, list) else value
    (torch.linspace(0.5, 1.5, len(value)) * value).sum().backward()
    assert similarities.grad is not None
    return value.detach(), similarities.grad


def of_views(pools: list[Pool], similarities: Tensor) -> list[Pool]:
    return [pool._replace(labels=view) for pool, view in zip(pools, similarities, strict=True)]


def added(*weighted: tuple[float, list[Tensor]]) -> list[Tensor]:
    return [
        sum((weight * term for (weight, _), term in zip(weighted, terms, strict=True)), torch.zeros(()).double())
        for terms in zip(*(terms for _, terms in weighted), strict=True)
    ]


def written_prime(pools: list[Pool], margin: tuple[float, float]) -> tuple[Tensor, Tensor]:
    similarities = stacked(pools)
    prototypes, texts = of_views(pools, similarities)
    regulariser = written_regulariser(prototypes._replace(instances=texts.labels))
    triplets = [written_triplet(pool, margin) for pool in (prototypes, texts)]
    return with_gradient(added((1, triplets[0]), (1, triplets[1]), (0.1, regulariser)), similarities)


def written_pal_n(pools: list[Pool], symmetric: bool) -> tuple[Tensor, Tensor]:
    similarities = stacked(pools)
    weight = 1 / len(pools) / (2 if symmetric else 1)
    each = [(weight, written_softmax(pool)) for pool in of_views(pools, similarities)]
    return with_gradient(added(*each), similarities)


@pytest.mark.parametrize("name", ["rae", "dexml", "softtopk", "infonce"])
def test_loss_of_a_method_with_one_view_equals_the_formula_of_its_paper(name: str) -> None:
    pools = drawn(name, sampled=True, dense=0.4)
    written = {
        "rae": written_rae(pools[0]),
        "dexml": written_decoupled(pools[0]),
        "softtopk": written_soft_top_k(pools[0], k=5),
        "infonce": written_softmax(pools[0]),
    }[name]
    found, _ = loss_and_gradient(name, pools, options(name))
    torch.testing.assert_close(found, torch.stack(written), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", ["bce", "ova"])
def test_loss_is_the_sum_of_the_binary_cross_entropies_of_all_labels(method: str) -> None:
    (pool,) = pools = drawn(method, dense=0.4)
    found, gradient = loss_and_gradient(method, pools, options(method))
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(
        pool.labels.detach(), pool.relevant.double(), reduction="none"
    )
    written = torch.where(pool.relevant.any(dim=1), entropy.sum(dim=1), 0)
    torch.testing.assert_close(found, written, rtol=1e-9, atol=1e-12)
    assert gradient.any()


def test_softtopk_has_the_given_k_and_alpha() -> None:
    k = 3
    pools = drawn("softtopk", dense=0.4)
    found, _ = loss_and_gradient("softtopk", pools, options("softtopk", softtopk_k=k, softtopk_alpha=2))
    torch.testing.assert_close(found, torch.stack(written_soft_top_k(pools[0], k=k)), rtol=1e-6, atol=1e-7)
    sharper, _ = loss_and_gradient("softtopk", pools, options("softtopk", softtopk_k=k, softtopk_alpha=4))
    assert not torch.allclose(sharper, found)


@every_margin
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", [{"sampled": True}, {"dense": 0.05}], ids=str)
def test_prime_adds_triplets_of_prototypes_and_texts_and_a_tenth_of_the_regulariser(
    shape: dict[str, Any], symmetric: bool, margin: tuple[float, float]
) -> None:
    pools = drawn("prime", **shape)
    found = loss_and_gradient("prime", pools, options("prime", symmetric=symmetric, margin=margin))
    torch.testing.assert_close(found, written_prime(pools, margin), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("text_loss", [True, False])
@pytest.mark.parametrize("weight", [0, 0.1, 0.3])
@pytest.mark.parametrize("printed", [True, False])
def test_options_of_prime_leave_out_terms_and_choose_printed_ones(
    text_loss: bool, weight: float, printed: bool
) -> None:
    pools = drawn("prime", dense=0.2)
    kinds = {"triplets": "sum", "regulariser": "printed"} if printed else {}
    given = options("prime", text_loss=text_loss, regulariser_weight=weight, **kinds)
    similarities = stacked(pools)
    prototypes, texts = of_views(pools, similarities)
    written = written_triplet_sum if printed else written_triplet
    regulariser = written_printed_regulariser if printed else written_regulariser
    terms = [
        (1, written(prototypes)),
        (int(text_loss), written(texts)),
        (weight, regulariser(prototypes._replace(instances=texts.labels))),
    ]
    expected = with_gradient(added(*terms), similarities)
    torch.testing.assert_close(loss_and_gradient("prime", pools, given), expected, rtol=1e-9, atol=1e-12)


@every_margin
def test_label_loss_of_prime_uses_texts_and_never_prototypes(margin: tuple[float, float]) -> None:
    pools = drawn("prime")
    value, gradient = label_loss_and_gradient("prime", pools, options("prime", symmetric=True, margin=margin))
    similarities = stacked(pools)
    written = written_triplet(of_views(pools, similarities)[1], margin)
    torch.testing.assert_close((value, gradient), with_gradient(written, similarities), rtol=1e-9, atol=1e-12)
    assert not gradient[0].any()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", [{"dense": 0.05}, {"queries": 1}], ids=str)
@pytest.mark.parametrize("name", WITH_PAL_N)
def test_query_loss_of_unidec_and_supcon_is_the_mean_over_views_and_is_halved_if_symmetric(
    name: str, shape: dict[str, Any], symmetric: bool
) -> None:
    pools = drawn(name, **shape)
    given = options(name, symmetric=symmetric)
    found = loss_and_gradient(name, pools, given)
    torch.testing.assert_close(found, written_pal_n(pools, symmetric), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [{"dense": 0.05}, {"keys": 1}], ids=str)
@pytest.mark.parametrize("name", WITH_PAL_N)
def test_label_loss_of_unidec_and_supcon_has_weight_one_half(name: str, shape: dict[str, Any]) -> None:
    pools = drawn(name, **shape)  # the rows are labels here
    found = label_loss_and_gradient(name, pools, options(name, symmetric=True))
    torch.testing.assert_close(found, written_pal_n(pools, symmetric=True), rtol=1e-9, atol=1e-12)
