from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

from trainer import losses, objective
from trainer.adapter import Adapter
from trainer.batches import Batch, Batches
from trainer.dataset import LabelSets
from trainer.gradient_cache import Embedder
from trainer.methods import METHODS, Scored
from trainer.negatives import HardNegatives
from trainer.objective import Objective
from trainer.ranks import ALONE, Ranks
from trainer.tokens import VectorTable

INSTANCES, LABELS, DIM = 30, 40, 8
TEMPERATURE = 0.1


class Problem:
    """Random texts, as vectors, with random labels; every fifth has none."""

    def __init__(self, dense: float = 0.1) -> None:
        random = np.random.default_rng(4)
        torch.manual_seed(4)
        self.model = Adapter(DIM, 16, dropout=0.0)
        nn.init.normal_(self.model.queries.narrow.weight, std=0.3)
        nn.init.normal_(self.model.labels.narrow.weight, std=0.3)
        queries, labels = (nn.functional.normalize(torch.randn(rows, DIM), dim=1) for rows in (INSTANCES, LABELS))
        self.queries, self.labels = VectorTable(queries), VectorTable(labels, "labels")
        relevance = random.random((INSTANCES, LABELS)) < dense
        relevance[::5] = False
        self.relevance = relevance
        listed = random.integers(0, LABELS, (INSTANCES, 6)).astype(np.int32)
        self.mined = HardNegatives(np.where(np.take_along_axis(relevance, listed, axis=1), -1, listed))

    def batch(self, method: str, **changed: Any) -> Batch:
        """Half of the instances, with the method's own settings, but for those that are changed."""
        own = {"positives": METHODS[method].positives, "hard_negatives": METHODS[method].hard_negatives}
        settings = {"batch_size": 15, "seed": 6} | own | changed
        label_sets = LabelSets.of(sparse.csr_matrix(self.relevance.astype(np.float32)))
        return Batches(label_sets, LABELS, np.arange(INSTANCES), **settings).at(1, self.mined)

    def backward(self, method: str, batch: Batch, ranks: Ranks = ALONE) -> tuple[float, Tensor]:
        embedder = Embedder(self.model, DIM, "cpu", autocast=False, micro_tokens=1_000, micro_rows=4, cache=True)
        loss = Objective(METHODS[method], TEMPERATURE, embedder, self.queries, self.labels, ranks).backward(batch)
        return loss, self.gradient()

    def directly(self, method: str, batch: Batch) -> tuple[float, Tensor]:
        """In one piece, on dense matrices, from the relevance matrix alone; which positives were drawn is given."""
        queries = self.model(self.queries.vectors[batch.rows])
        keys = self.model(self.labels.vectors[batch.pool], "labels")
        truth, rows = self.relevance[batch.rows], range(len(batch.rows))
        relevant = torch.from_numpy(truth[:, batch.pool])
        positives = torch.zeros_like(relevant)
        for query, key in zip(batch.positives.query, batch.positives.key, strict=True):
            positives[query, key] = True
        assert not (positives & ~relevant).any()
        strangers = torch.tensor([[i != j and not (truth[i] & truth[j]).any() for j in rows] for i in rows])
        scores = queries @ keys.T / TEMPERATURE
        values = {
            "infonce": lambda: losses.softmax_cross_entropy(scores, positives),
            "dexml": lambda: losses.decoupled_softmax(scores, positives, relevant),
            "softtopk": lambda: losses.soft_top_k_loss(scores, positives, 5),
            "rae": lambda: losses.rae(scores, positives, relevant, queries @ queries.T / TEMPERATURE, strangers),
        }[method]()
        loss = values[positives.any(dim=1)].mean() if positives.any() else 0 * values.sum()
        loss.backward()
        return float(loss.detach()), self.gradient()

    def gradient(self) -> Tensor:
        found = torch.cat([weight.grad.flatten() for weight in self.model.parameters() if weight.grad is not None])
        self.model.zero_grad()
        return found


def assert_same(found: tuple[float, Tensor], expected: tuple[float, Tensor]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert float((found[1] - expected[1]).norm()) <= 1e-5 * float(expected[1].norm())


every_method = pytest.mark.parametrize("method", METHODS)


@every_method
def test_gradient_is_that_of_the_loss_in_one_piece(method: str) -> None:
    problem = Problem()
    batch = problem.batch(method)
    assert_same(problem.backward(method, batch), problem.directly(method, batch))


@every_method
@pytest.mark.parametrize(
    "settings",
    [
        {"positives": 0, "hard_negatives": 3},
        {"positives": 2, "hard_negatives": None},
        {"positives": 1, "hard_negatives": 0},
    ],
    ids=["all positives and mined", "some positives, all labels", "one positive, in batch"],
)
def test_any_method_works_with_any_positives_and_any_pool(method: str, settings: dict[str, Any]) -> None:
    problem = Problem()
    batch = problem.batch(method, **settings)
    assert_same(problem.backward(method, batch), problem.directly(method, batch))


@every_method
@pytest.mark.parametrize("scores", [1, 150, 400])
def test_blocks_of_queries_change_nothing(method: str, scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem()
    batch = problem.batch(method)
    expected = problem.backward(method, batch)
    monkeypatch.setattr(objective, "_BLOCK_SCORES", {"cpu": scores})
    assert_same(problem.backward(method, batch), expected)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[Scored]:
    """What the losses of all blocks read."""
    read = []
    score = Objective._score

    def watched(*arguments: Any) -> Scored:
        read.append(score(*arguments))
        return read[-1]

    monkeypatch.setattr(Objective, "_score", watched)
    return read


@every_method
def test_no_more_similarities_than_a_block_has_are_held_at_once(
    method: str, blocks: list[Scored], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem()
    batch = problem.batch(method)
    monkeypatch.setattr(objective, "_BLOCK_SCORES", {"cpu": 150})
    problem.backward(method, batch)
    assert 1 < len(blocks) <= len(batch.rows)
    assert max(block.labels.numel() + block.instances.numel() for block in blocks) <= 150


def test_over_a_large_pool_a_block_is_still_as_large_as_the_keys_gradient(
    blocks: list[Scored], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem()
    monkeypatch.setattr(objective, "_BLOCK_SCORES", {"cpu": 1})
    monkeypatch.setattr(objective, "_HELD", DIM // 4)
    problem.backward("dexml", problem.batch("dexml"))
    assert [len(block.labels) for block in blocks] == [4, 4, 4, 3]


@every_method
def test_all_ranks_make_blocks_of_one_size_larger_as_there_are_more_of_them(method: str) -> None:
    problem = Problem()
    batch, vectors = problem.batch(method), torch.zeros(5, DIM)

    def block(rank: int, ranks: int) -> int:
        embedder = Embedder(problem.model, DIM, "cpu", autocast=False, micro_tokens=9, micro_rows=9, cache=True)
        shared = Objective(METHODS[method], TEMPERATURE, embedder, problem.queries, problem.labels, Ranks(rank, ranks))
        return shared._block(batch, vectors)

    assert block(0, 1) < block(0, 3) == block(1, 3) == block(2, 3)


@every_method
@pytest.mark.parametrize("hard_negatives", [None, 0], ids=["all labels", "empty pool"])
def test_batch_without_a_label_has_no_loss_and_no_gradient(method: str, hard_negatives: int | None) -> None:
    problem = Problem(dense=0)
    loss, gradient = problem.backward(method, problem.batch(method, hard_negatives=hard_negatives))
    assert loss == 0
    assert not gradient.any()
