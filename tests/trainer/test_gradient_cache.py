from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.heads.dual_encoder import DualEncoder, VectorDualEncoder
from recollect.trainer.training.gradient_cache import Embedder, Part
from tests.trainer.conftest import LABELS, SAMPLE_TEXTS, TEXTS
from tests.trainer.helpers import learned_adapter, learned_head


class Learner(NamedTuple):
    """A model in training mode, with dropout, and the rows of two sides that it embeds."""

    model: DualEncoder
    parts: list[Part]


DIM = 32  # as in the tiny BERT
# The rows are a subset, not in ascending order. Each row must get its own place in the result.
QUERIES, KEYS = np.array([9, 0, 16, 3, 12, 5, 14]), np.array([4, 1, 0, 2])


@pytest.fixture(params=["bert", "rae", "prime", "unidec"])
def learner(request: pytest.FixtureRequest) -> Learner:
    if request.param != "bert":
        torch.manual_seed(3)
        adapter, head = learned_adapter(DIM, 16, dropout=0.5), learned_head(request.param, DIM, len(LABELS))
        tables = [
            VectorTable(nn.functional.normalize(torch.randn(rows, DIM), dim=1), side)
            for rows, side in ((18, "queries"), (5, "labels"))
        ]
        return Learner(VectorDualEncoder(DIM, adapter, head).train(), [Part(tables[0], QUERIES), Part(tables[1], KEYS)])
    encoder = request.getfixturevalue("tiny_encoder")
    sides = [encoder.tokenise([*TEXTS, *SAMPLE_TEXTS], 32), encoder.tokenise(LABELS, 8)]
    model = copy.deepcopy(encoder.model).trainable().train()
    return Learner(model, [Part(sides[0], QUERIES), Part(sides[1], KEYS)])


def embedder(
    model: DualEncoder, cache: bool = True, micro_rows: int = 3, micro_tokens: int = 10_000, autocast: bool = False
) -> Embedder:
    return Embedder(model, "cpu", autocast=autocast, micro_tokens=micro_tokens, micro_rows=micro_rows, cache=cache)


def written_loss(queries: Tensor, keys: Tensor) -> Tensor:
    """A loss in which each row and view of both sides has a different weight."""
    queries, keys = (torch.einsum("rvd,v->rd", side, torch.linspace(1, 2, side.shape[1])) for side in (queries, keys))
    scores = queries @ keys.T * torch.linspace(1, 9, len(queries))[:, None]
    return (torch.logsumexp(scores, dim=1) - scores[:, 0]).sum()


def backward_of_written_loss(leaves: list[Tensor]) -> float:
    loss = written_loss(*leaves)
    loss.backward()
    return float(loss.detach())


def gradient(model: nn.Module) -> Tensor:
    """Return the gradients of all weights in one vector, and remove them from the model."""
    found = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    model.zero_grad()
    return found


def directly(learner: Learner, micro_rows: int) -> tuple[float, Tensor]:
    """Compute loss and gradient with the graphs of all micro-batches in memory."""
    sides = []
    for part in learner.parts:
        rows: list[Any] = [None] * len(part.rows)
        for places in embedder(learner.model, micro_rows=micro_rows).micro_batches(part):
            vectors = learner.model.views(*part.inputs.batch(part.rows[places], "cpu"))
            for place, vector in zip(places, vectors, strict=True):
                rows[place] = vector
        sides.append(torch.stack(rows))
    loss = written_loss(*sides)
    loss.backward()
    return float(loss.detach()), gradient(learner.model)


def assert_same(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).norm()) <= 1e-5 * float(expected.norm())


@pytest.mark.parametrize("micro_rows", [3, 100])
@pytest.mark.parametrize("cache", [True, False])
def test_with_dropout_gradient_and_random_state_equal_a_computation_without_cache(
    learner: Learner, micro_rows: int, cache: bool
) -> None:
    torch.manual_seed(11)
    loss, expected = directly(learner, micro_rows)
    state = torch.get_rng_state()
    torch.manual_seed(11)
    found = embedder(learner.model, cache, micro_rows).backward(learner.parts, backward_of_written_loss)
    assert torch.equal(torch.get_rng_state(), state)
    assert found == pytest.approx(loss, rel=1e-6)
    assert_same(gradient(learner.model), expected)


def test_bfloat16_gives_single_precision_vectors_and_a_close_gradient(learner: Learner) -> None:
    learner.model.eval()
    embedder(learner.model).backward(learner.parts, backward_of_written_loss)
    expected = gradient(learner.model)
    work = embedder(learner.model, autocast=True)
    assert work.views(learner.parts[0], np.arange(2)).dtype == torch.float32
    work.backward(learner.parts, backward_of_written_loss)
    assert float((gradient(learner.model) - expected).norm()) < 0.1 * float(expected.norm())
