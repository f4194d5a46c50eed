from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

from recollect.trainer.data.split import LabelSets
from recollect.trainer.distributed import ALONE, Ranks
from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from recollect.trainer.methods import METHODS, MethodOptions
from recollect.trainer.methods.scored import Scored
from recollect.trainer.sharded import Sharded
from recollect.trainer.training import objective
from recollect.trainer.training.batches import Batch, Batches
from recollect.trainer.training.gradient_cache import Embedder
from recollect.trainer.training.negatives import HardNegatives
from recollect.trainer.training.objective import Objective
from tests.trainer.helpers import learned_adapter, learned_head

INSTANCES, LABELS, DIM = 30, 40, 8
TEMPERATURE = 0.1


def _everything(scored: Scored, _: MethodOptions) -> Tensor:
    views = (dataclasses.replace(scored, scores=view[None]) for view in scored.scores)
    scale = scored.numbers["scale"]
    return scale * torch.stack([METHODS["rae"].loss(view, MethodOptions()) for view in views]).sum(dim=0)


# All methods, and a method that combines instances, several views, a loss of labels and a learned number.
EVERYTHING = dataclasses.replace(METHODS["unidec"], loss=_everything, instances=True, numbers={"scale": 0.7})
ALL = METHODS | {"everything": EVERYTHING}


class Problem:
    """Random text vectors with random labels for one method. Every fifth text has no label."""

    def __init__(self, method: str, dense: float = 0.1, **options: Any) -> None:
        random = np.random.default_rng(4)
        torch.manual_seed(4)
        self.name, self.method = method, ALL[method]
        self.options = self.method.options(**options)
        queries, labels = (nn.functional.normalize(torch.randn(rows, DIM), dim=1) for rows in (INSTANCES, LABELS))
        self.queries, self.labels = VectorTable(queries), VectorTable(labels, "labels")
        self.temperature = TEMPERATURE if self.method.temperature else 1.0
        relevance = random.random((INSTANCES, LABELS)) < dense
        relevance[::5] = False
        self.relevance = relevance
        self.values = sparse.csr_matrix(relevance.astype(np.float32))
        head = learned_head("unidec" if method == "everything" else method, DIM, LABELS, self.values, **options)
        self.model = VectorDualEncoder(DIM, learned_adapter(DIM, 16, std=0.3), head).eval()  # no dropout
        self.model.numbers.update({name: torch.tensor(start) for name, start in self.method.numbers.items()})
        candidates = random.integers(0, LABELS, (INSTANCES, 6)).astype(np.int32)
        wrong = np.where(np.take_along_axis(relevance, candidates, axis=1), -1, candidates)
        self.mined = HardNegatives(Sharded.of(wrong))

    def batch(self, **changed: Any) -> Batch:
        """Return a batch of half of the instances. Settings that are not given have the method's defaults."""
        own = {"positives": self.method.positives, "hard_negatives": self.method.hard_negatives}
        settings = {"batch_size": 15, "seed": 6} | own | changed
        return Batches(LabelSets.of(self.values), LABELS, np.arange(INSTANCES), **settings).at(1, self.mined)

    def backward(self, batch: Batch, ranks: Ranks = ALONE, cache: bool = True) -> tuple[float, Tensor]:
        """Return the objective's loss and gradient. The model stays unchanged."""
        loss, after = self.step(batch, ranks, cache)
        return loss, gradient(after, ranks)

    def step(self, batch: Batch, ranks: Ranks = ALONE, cache: bool = True) -> tuple[float, VectorDualEncoder]:
        """Return the objective's loss, and a copy of the model with its gradient."""
        model = copy.deepcopy(self.model)
        if model.table is not None:
            model.table.divide(ranks)
        return self.objective(model, ranks, cache).backward(batch), model

    def objective(self, model: VectorDualEncoder, ranks: Ranks = ALONE, cache: bool = True) -> Objective:
        embedder = Embedder(model, "cpu", autocast=False, micro_tokens=1_000, micro_rows=4, cache=cache)
        return Objective(self.method, self.options, self.temperature, embedder, self.queries, self.labels, ranks)

    def directly(self, batch: Batch) -> tuple[float, Tensor]:
        """Compute loss and gradient with dense matrices from the relevance matrix and the drawn positives."""
        model = copy.deepcopy(self.model)
        pool = torch.from_numpy(batch.pool)
        queries = model.views(self.queries.vectors[batch.rows])
        keys = model.views(self.labels.vectors[pool], "labels", pool)
        truth, rows = self.relevance[batch.rows], range(len(batch.rows))
        relevant = torch.from_numpy(truth[:, batch.pool])
        drawn = torch.zeros_like(relevant)
        for query, key in zip(batch.positives.query, batch.positives.key, strict=True):
            drawn[query, key] = True
        assert not (drawn & ~relevant).any()
        positives = relevant if self.method.pulls_pool else drawn
        disjoint_instances = torch.tensor([[i != j and not (truth[i] & truth[j]).any() for j in rows] for i in rows])
        views = [
            queries[:, min(view, queries.shape[1] - 1)] @ keys[:, view].T / self.temperature
            for view in range(keys.shape[1])
        ]
        instances = queries[:, 0] @ queries[:, 0].T / self.temperature, disjoint_instances
        numbers = dict(model.numbers.items())
        scored = Scored(torch.stack(views), positives, relevant, *instances, numbers)
        loss = _mean(self.method.loss(scored, self.options), positives)
        if self.method.label_loss is not None and getattr(self.options, "symmetric", True):
            none = torch.empty((len(pool), 0))
            transposed = torch.stack([view.T for view in views]), positives.T, relevant.T
            scored = Scored(*transposed, none, none.bool(), numbers)
            loss = loss + _mean(self.method.label_loss(scored, self.options), positives.T)
        loss.backward()
        return float(loss.detach()), gradient(model)


def gradient(model: VectorDualEncoder, ranks: Ranks = ALONE) -> Tensor:
    """Return the gradients of all weights in one vector. The rows of a divided table come last."""
    gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]
    if model.table is not None and not isinstance(model.table.rows, nn.Parameter):
        assert model.table.rows.grad is not None
        gradients.append(ranks.all_gather(model.table.rows.grad, LABELS))
    return torch.cat([each.flatten() for each in gradients])


def _mean(each: Tensor, positives: Tensor) -> Tensor:
    """Return the mean over the rows that have a positive."""
    return each[positives.any(dim=1)].mean() if positives.any() else 0 * each.sum()


def assert_same(found: tuple[float, Tensor], expected: tuple[float, Tensor]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert float((found[1] - expected[1]).norm()) <= 1e-5 * float(expected[1].norm())


every_method = pytest.mark.parametrize("method", ALL)


@every_method
@pytest.mark.parametrize("cache", [True, False], ids=["gradient cache", "kept graphs"])
def test_gradient_computed_in_blocks_equals_autograd_of_the_whole_loss(method: str, cache: bool) -> None:
    problem = Problem(method)
    batch = problem.batch()
    expected = problem.directly(batch)
    assert expected[1].any()
    assert_same(problem.backward(batch, cache=cache), expected)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("prime", {"symmetric": False}),
        ("prime", {"margin": (0.2, 0.2)}),
        ("prime", {"triplet_negatives": 2}),
        ("prime", {"text_loss": False}),
        ("prime", {"regulariser_weight": 0}),
        ("ngame", {"margin": (0.2, 0.2)}),
        ("ngame", {"triplet_negatives": 2}),
        ("softtopk", {"softtopk_k": 3}),
        ("softtopk", {"softtopk_alpha": 4}),
        ("unidec", {"symmetric": False}),
        ("supcon", {"symmetric": False}),
        ("supcon", {"projection": 5}),
        ("everything", {"symmetric": False}),
    ],
    ids=str,
)
def test_options_of_a_method_change_its_loss(method: str, options: dict[str, Any]) -> None:
    problem = Problem(method, **options)
    batch = problem.batch()
    found = problem.backward(batch)
    assert_same(found, problem.directly(batch))
    assert found[0] != pytest.approx(Problem(method).backward(batch)[0], rel=1e-3)


@every_method
@pytest.mark.parametrize(
    "settings",
    [
        {"positives": 0, "hard_negatives": 3},
        {"positives": 2, "hard_negatives": None},
        {"positives": 1, "hard_negatives": 2, "batch_size": 1},
    ],
    ids=["all positives and mined", "some positives, all labels", "one query"],
)
def test_gradient_of_any_method_is_correct_with_any_positives_and_any_pool(
    method: str, settings: dict[str, Any]
) -> None:
    problem = Problem(method)
    batch = problem.batch(**settings)
    assert_same(problem.backward(batch), problem.directly(batch))


@pytest.mark.parametrize("method", ["prime", "ngame", "unidec", "supcon"])
def test_query_moves_closer_to_each_of_its_labels_in_the_pool_whichever_query_they_were_drawn_for(method: str) -> None:
    problem = Problem(method, dense=0.4)
    batch = problem.batch(positives=1)
    assert len(batch.relevant.query) > 2 * len(batch.positives.query)
    assert_same(problem.backward(batch), problem.backward(dataclasses.replace(batch, positives=batch.relevant)))


@every_method
@pytest.mark.parametrize("scores", [1, 150])
def test_loss_and_gradient_do_not_depend_on_the_block_size(
    method: str, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(method)
    batch = problem.batch()
    expected = problem.backward(batch)
    monkeypatch.setattr(objective, "_BLOCK_SCORES", {"cpu": scores})
    assert_same(problem.backward(batch), expected)


@every_method
@pytest.mark.parametrize("hard_negatives", [None, 0], ids=["all labels", "empty pool"])
def test_batch_whose_queries_have_no_labels_has_no_loss_and_no_gradient(
    method: str, hard_negatives: int | None
) -> None:
    problem = Problem(method, dense=0)
    loss, gradient = problem.backward(problem.batch(hard_negatives=hard_negatives))
    assert loss == 0
    assert not gradient.any()
