"""PRIME's losses and gradients against the written formulas, triplet by triplet in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.trainer.distributed import ALONE
from recollect.trainer.methods import METHODS, prime
from tests.trainer.helpers import options
from tests.trainer.test_losses import Pool, average, draw, every_pool, loss_of, scored, value_and_gradients

MARGINS = [(0.1, 0.3), (0.2, 0.2)]
every_margin = pytest.mark.parametrize("margin", MARGINS, ids=["clipped", "fixed"])
every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def cosines(pool: Pool) -> Pool:
    """Scale similarities to the range of unit vectors. `labels` are then prototypes and `instances` texts."""
    random = np.random.default_rng(len(pool.labels))
    labels = pool.labels.clamp(-12, 12) / 12
    texts = labels + 0.2 * torch.from_numpy(random.normal(size=labels.shape))
    return pool._replace(labels=labels, instances=texts, disjoint_instances=pool.relevant)


def written_triplet(pool: Pool, margin: tuple[float, float] = (0.1, 0.3), hardest: int = 100) -> list[Tensor]:
    found = []
    for s, positive, relevant in zip(*pool[:3], strict=True):
        known, terms = s.tolist(), []
        negatives = sorted((~relevant).nonzero()[:, 0].tolist(), key=lambda n: -known[n])[:hardest]
        for p in positive.nonzero()[:, 0].tolist():
            margins = {n: min(max(abs(known[p] - known[n]), margin[0]), margin[1]) for n in negatives}
            weights = {n: torch.exp(s[n] / 0.1) for n in negatives if known[n] - known[p] + margins[n] > 0}
            total = sum(weights.values())
            violations = (weights[n] / total * (s[n] - s[p] + margins[n]) for n in weights)
            terms.append(sum(violations, s.sum() * 0))
        found.append(average(terms, s))
    return found


def written_regulariser(pool: Pool, margin: float = 0.1, hardest: int = 100) -> list[Tensor]:
    found = []
    for b, positive, relevant, s in zip(*pool[:4], strict=True):
        negatives = sorted((~relevant).nonzero()[:, 0].tolist(), key=lambda n: -b[n].item())
        nearer = [s[p] - b[p] + margin for p in positive.nonzero()[:, 0]]
        farther = [b[n] - s[n] + margin for n in negatives[:hardest] if positive.any()]
        halves = [average([v for v in part if v.item() > 0], b + s) for part in (nearer, farther)]
        found.append((halves[0] + halves[1]) / 2)
    return found


def triplet(pool: Pool, margin: tuple[float, float] = (0.1, 0.3), hardest: int = 100) -> Tensor:
    return loss_of("ngame", margin=margin, triplet_negatives=hardest)(pool)


def regulariser(pool: Pool, hardest: int = 100) -> Tensor:
    return prime.regulariser(scored(pool, ALONE, pool.labels, pool.instances), hardest)


@pytest.mark.parametrize(("text_loss", "weight"), [(True, 0.1), (False, 0.1), (True, 0.0)])
def test_loss_of_prime_is_a_sum_of_triplets_and_the_regulariser(text_loss: bool, weight: float) -> None:
    pool = cosines(draw(seed=2))
    given = options("prime", text_loss=text_loss, regulariser_weight=weight)
    texts = triplet(pool._replace(labels=pool.instances))
    expected = triplet(pool) + text_loss * texts + weight * regulariser(pool)
    views = scored(pool, ALONE, pool.labels, pool.instances)
    torch.testing.assert_close(METHODS["prime"].loss(views, given), expected)
    assert METHODS["prime"].label_loss is not None
    torch.testing.assert_close(METHODS["prime"].label_loss(views, given), texts)


@every_margin
@every_pool
def test_triplet_loss_and_its_gradient_equal_the_formula(pool: Pool, margin: tuple[float, float]) -> None:
    pool = cosines(pool)
    found = value_and_gradients(lambda own: triplet(own, margin), pool)
    expected = value_and_gradients(lambda own: written_triplet(own, margin), pool)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@every_pool
def test_loss_of_several_positives_is_the_expected_loss_of_one_drawn_positive(pool: Pool) -> None:
    """PRIME's code draws one of a query's true labels in the pool at each step, all with equal probability."""
    pool = cosines(pool)
    drawn = []
    for row, positives in enumerate(pool.relevant):
        one_each = torch.diag(positives)[positives]
        terms = [triplet(pool._replace(positives=one.expand_as(pool.relevant)))[row] for one in one_each]
        drawn.append(average(terms, pool.labels))
    torch.testing.assert_close(triplet(pool._replace(positives=pool.relevant)), torch.stack(drawn))


@pytest.mark.parametrize(
    ("loss", "written"),
    [(triplet, written_triplet), (regulariser, written_regulariser)],
    ids=["triplet", "regulariser"],
)
@pytest.mark.parametrize("hardest", [1, 3])
def test_losses_use_only_the_hardest_negatives(hardest: int, loss: Any, written: Any) -> None:
    pool = cosines(draw(keys=12))
    found = value_and_gradients(lambda own: loss(own, hardest=hardest), pool)
    expected = value_and_gradients(lambda own: written(own, hardest=hardest), pool)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("factor", [0.02, 0.5], ids=["some", "most"])
@every_pool
def test_regulariser_and_its_gradient_equal_the_formula(pool: Pool, factor: float) -> None:
    pool = cosines(pool)
    pool = pool._replace(instances=pool.labels + factor * (pool.instances - pool.labels))
    found, expected = value_and_gradients(regulariser, pool), value_and_gradients(written_regulariser, pool)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", [triplet, regulariser])
@pytest.mark.parametrize(
    "scaled",
    [cosines, lambda pool: pool._replace(instances=-pool.labels, disjoint_instances=pool.relevant)],
    ids=["unit", "large"],
)
@every_pool
def test_prime_losses_in_single_precision_and_bfloat16_give_no_nan(
    loss: Callable[[Pool], Tensor], scaled: Callable[[Pool], Pool], pool: Pool, dtype: torch.dtype
) -> None:
    pool = scaled(pool)
    low = pool._replace(labels=pool.labels.to(dtype), instances=pool.instances.to(dtype))
    found = value_and_gradients(loss, low)
    assert all(part.isfinite().all() for part in found)
    assert found[0].dtype == dtype


class TestTriplet:
    @every_type
    def test_loss_is_exactly_0_if_the_positive_is_nearer_by_an_amount_between_the_bounds(
        self, dtype: torch.dtype
    ) -> None:
        random = np.random.default_rng(0)
        positives = random.uniform(-0.7, 1, (1_000, 1))
        leads = random.uniform(0.101, 0.299, (1_000, 5))
        scores = torch.from_numpy(np.hstack([positives, positives - leads])).to(dtype)
        relevant = torch.zeros(scores.shape, dtype=torch.bool)
        relevant[:, 0] = True
        found = value_and_gradients(triplet, Pool(scores, relevant, relevant, scores, relevant))
        assert all(not part.any() for part in found)
