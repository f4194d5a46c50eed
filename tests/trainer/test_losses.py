"""Each loss and its gradient against the written formula, query by query in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.trainer.distributed import ALONE, Ranks
from recollect.trainer.methods import METHODS
from recollect.trainer.methods.log_soft_top_k import log_soft_top_k
from recollect.trainer.methods.scored import Scored
from tests.trainer.helpers import options


class Pool(NamedTuple):
    """Similarities of some queries to labels and instances, with positives, relevance and disjoint instances."""

    labels: Tensor
    positives: Tensor
    relevant: Tensor
    instances: Tensor
    disjoint_instances: Tensor


def draw(
    seed: int = 0, queries: int = 6, keys: int = 9, instances: int = 6, dense: float = 0.3, sampled: bool = False
) -> Pool:
    """Draw similarities and relevance. With `sampled`, a query has at most one positive."""
    random = np.random.default_rng(seed)
    relevant = random.random((queries, keys)) < dense
    sort_key = np.where(relevant, random.random(relevant.shape), 0)
    positives = relevant & (sort_key == sort_key.max(axis=1, keepdims=True, initial=0)) if sampled else relevant
    disjoint_instances = random.random((queries, instances)) < 0.6
    np.fill_diagonal(disjoint_instances, val=False)
    labels, similar = random.normal(0, 4, (queries, keys)), random.normal(0, 4, (queries, instances))
    return Pool(*map(torch.from_numpy, (labels, positives, relevant, similar, disjoint_instances)))


def with_repeated_labels(pool: Pool) -> Pool:
    """Repeat every key, with the same similarities and relevance."""
    labels, positives, relevant = (torch.cat([part, part], dim=1) for part in pool[:3])
    return pool._replace(labels=labels, positives=positives, relevant=relevant)


def at_extremes(pool: Pool) -> Pool:
    return pool._replace(labels=500 * pool.labels.sign(), instances=500 * pool.instances.sign())


def without_disjoint_instances(pool: Pool) -> Pool:
    return pool._replace(disjoint_instances=torch.zeros_like(pool.disjoint_instances))


POOLS: dict[str, Pool] = {
    **{f"random {seed}": draw(seed, queries=5 + seed, keys=4 + 3 * seed) for seed in (1, 3)},
    "sampled positives": draw(0, keys=20, dense=0.5, sampled=True),
    "no label at all": draw(dense=0.0),
    "every label positive, no disjoint instance": without_disjoint_instances(draw(dense=1.0)),
    "repeated labels": with_repeated_labels(draw(seed=2, sampled=True)),
    "one query, one key, itself the only instance": draw(queries=1, keys=1, instances=1, dense=1.0),
    "no keys": draw(keys=0),
    "no instances": draw(seed=4, instances=0, sampled=True),
    "scores of 500": at_extremes(draw(seed=5, sampled=True)),
    "scores of 500, no negatives": without_disjoint_instances(at_extremes(draw(seed=7, dense=1.0))),
}
every_pool = pytest.mark.parametrize("pool", [pytest.param(pool, id=name) for name, pool in POOLS.items()])


def average(terms: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(terms).mean() if terms else like.sum() * 0


def written_softmax(pool: Pool) -> list[Tensor]:
    found = []
    for s, positive in zip(pool.labels, pool.positives, strict=True):
        found.append(average([torch.log(sum(torch.exp(m) for m in s)) - s[j] for j in positive.nonzero()[:, 0]], s))
    return found


def written_decoupled(pool: Pool) -> list[Tensor]:
    found = []
    for s, positive, relevant in zip(*pool[:3], strict=True):
        negatives = [torch.exp(m) for m, own in zip(s, relevant, strict=True) if not own]
        terms = [torch.log(sum(negatives, torch.exp(s[j]))) - s[j] for j in positive.nonzero()[:, 0]]
        found.append(average(terms, s))
    return found


def written_rae(pool: Pool) -> list[Tensor]:
    found = []
    for s, positive, relevant, x, disjoint in zip(*pool, strict=True):
        negatives = [torch.exp(m) for m, own in zip(s, relevant, strict=True) if not own]
        negatives += [torch.exp(m) for m, is_disjoint in zip(x, disjoint, strict=True) if is_disjoint]
        terms = [torch.log(sum(negatives, torch.exp(s[j]))) - s[j] for j in positive.nonzero()[:, 0]]
        found.append(average(terms, s))
    return found


def written_log_soft_top_k(s: Tensor, k: int, alpha: float) -> Tensor:
    """Find the threshold by bisection to the last bit.

    One Newton step then gives autograd the derivative of the threshold by s.
    """
    known = s.detach()
    low, high = float(-known.max()) - 40, float(-known.min()) + 40
    for _ in range(200):
        t = (low + high) / 2
        low, high = (low, t) if float(torch.sigmoid(alpha * (known + t)).sum()) > k else (t, high)
    inside = torch.sigmoid(alpha * (s + t))
    t = t - (inside.sum() - k) / (alpha * inside * (1 - inside)).sum().detach()
    return torch.nn.functional.logsigmoid(alpha * (s + t))


def written_soft_top_k(pool: Pool, k: int, alpha: float = 2.0) -> list[Tensor]:
    found = []
    for s, positive, relevant in zip(*pool[:3], strict=True):
        competing = positive | ~relevant
        logs = written_log_soft_top_k(s[competing], k, alpha) if competing.any() else s
        found.append(average([-log for log in logs[positive[competing]]], s))
    return found


def value_and_gradients(function: Callable[[Pool], list[Tensor] | Tensor], pool: Pool) -> list[Tensor]:
    """Return the losses, and the gradients of their sum with a different weight for each query."""
    labels, instances = pool.labels.clone().requires_grad_(), pool.instances.clone().requires_grad_()
    found = function(pool._replace(labels=labels, instances=instances))
    value = torch.stack(found) if isinstance(found, list) else found
    weights = torch.linspace(0.5, 1.5, len(value), dtype=value.dtype)
    gradients = torch.autograd.grad(
        (weights * value).sum(), (labels, instances), allow_unused=True, materialize_grads=True
    )
    return [value.detach(), *gradients]


def scored(pool: Pool, ranks: Ranks = ALONE, *views: Tensor) -> Scored:
    """Return the scores of a pool, in one view or in the given ones."""
    scores = torch.stack(views or (pool.labels,))
    return Scored(scores, pool.positives, pool.relevant, pool.instances, pool.disjoint_instances, ranks=ranks)


def loss_of(method: str, **given: Any) -> Callable[[Pool], Tensor]:
    return lambda pool: METHODS[method].loss(scored(pool), options(method, **given))


WRITTEN = {"infonce": written_softmax, "dexml": written_decoupled, "rae": written_rae}


@pytest.mark.parametrize("method", WRITTEN)
@every_pool
def test_value_and_gradient_of_each_loss_equal_its_formula(method: str, pool: Pool) -> None:
    found, expected = value_and_gradients(loss_of(method), pool), value_and_gradients(WRITTEN[method], pool)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", [*WRITTEN, "softtopk"])
@every_pool
def test_loss_in_single_precision_and_bfloat16_gives_no_nan(method: str, pool: Pool, dtype: torch.dtype) -> None:
    low = pool._replace(labels=pool.labels.to(dtype), instances=pool.instances.to(dtype))
    assert all(part.isfinite().all() for part in value_and_gradients(loss_of(method), low))


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_of_unidec_is_the_mean_of_its_views_and_half_of_it_beside_the_loss_of_labels(symmetric: bool) -> None:
    pool = draw(seed=2)
    views, given = (pool.labels, 2 * pool.labels), options("unidec", symmetric=symmetric)
    expected = sum(torch.stack(written_softmax(pool._replace(labels=view))) for view in views) / 2
    found = METHODS["unidec"].loss(scored(pool, ALONE, *views), given)
    torch.testing.assert_close(found, expected / 2 if symmetric else expected)


@every_pool
def test_binary_cross_entropy_is_summed_over_the_labels_of_each_query_that_has_one(pool: Pool) -> None:
    function = torch.nn.functional.binary_cross_entropy_with_logits
    entropy = function(pool.labels, pool.relevant.double(), reduction="none").sum(dim=1)
    expected = torch.where(pool.relevant.any(dim=1), entropy, 0)
    torch.testing.assert_close(loss_of("bce")(pool._replace(positives=pool.relevant)), expected)


@pytest.mark.parametrize("name", ["random 3", "sampled positives", "repeated labels", "no label at all"])
@pytest.mark.parametrize("k", [1, 5])
def test_soft_top_k_loss_equals_its_formula(name: str, k: int) -> None:
    found = value_and_gradients(loss_of("softtopk", softtopk_k=k), POOLS[name])
    expected = value_and_gradients(lambda pool: written_soft_top_k(pool, k), POOLS[name])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("true", "all_sampled"), [(8, 0.7587), (22, 6.6458)])
def test_true_labels_that_are_not_sampled_take_no_place_in_the_top_k(true: int, all_sampled: float) -> None:
    scores = 16 - torch.arange(true + 40, dtype=torch.float64)[None] / 2  # a ladder: all true labels, then all others
    relevant = (torch.arange(true + 40) < true)[None]
    last = (torch.arange(true + 40) == true - 1)[None]
    for positives, expected in ((last, 0.0111), (relevant, all_sampled)):
        pool = Pool(scores, positives, relevant, scores[:, :0], relevant[:, :0])
        assert loss_of("softtopk")(pool).tolist() == pytest.approx([expected], abs=1e-4)


@pytest.mark.parametrize(("k", "alpha"), [(1, 7.0), (5, 2.0), (11, 0.5)])
def test_log_soft_top_k_equals_the_exact_solution_of_its_equation(k: int, alpha: float) -> None:
    def precise(pool: Pool) -> Tensor:
        return torch.cat([written_log_soft_top_k(row, k, alpha) for row in pool.labels])

    pool = draw(seed=8, keys=12)
    pool = pool._replace(labels=pool.labels / alpha)
    found = value_and_gradients(lambda pool: log_soft_top_k(pool.labels, k, alpha).flatten(), pool)
    torch.testing.assert_close(found, value_and_gradients(precise, pool), rtol=1e-6, atol=1e-6)


def test_soft_top_k_of_many_equal_keys_sums_to_k() -> None:
    sums = log_soft_top_k(torch.full((1, 200_000), 18.0, dtype=torch.float64), 5).exp().sum(dim=1)
    torch.testing.assert_close(sums, torch.full_like(sums, 5), rtol=0, atol=1e-5)


def test_log_soft_top_k_of_scores_far_apart_has_finite_gradients() -> None:
    for dtype in (torch.float32, torch.float64):
        scores = torch.tensor([[500.0] * 3 + [-500.0] * 20], dtype=dtype, requires_grad=True)
        log_soft_top_k(scores, 3).sum().backward()
        assert scores.grad is not None
        assert scores.grad.isfinite().all()
