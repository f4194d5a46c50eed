from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.trainer.encoding.encoder import Encoder, embed
from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.heads.adapter import Side
from recollect.trainer.heads.dual_encoder import VectorDualEncoder
from tests.trainer.conftest import SAMPLE_TEXTS
from tests.trainer.helpers import learned_adapter, learned_head

DIM, LABELS = 32, 4  # as many as there are sample texts
METHODS = ["rae", "prime", "unidec"]
every_side = pytest.mark.parametrize("side", ["queries", "labels"])
ROWS = torch.arange(LABELS)


@pytest.fixture
def vectors() -> Tensor:
    return nn.functional.normalize(torch.randn(LABELS, DIM, generator=torch.Generator().manual_seed(5)), dim=1)


@pytest.mark.parametrize(
    ("method", "query_views", "label_views", "key_dim"),
    [("rae", 1, 1, DIM), ("prime", 1, 2, DIM), ("unidec", 2, 2, 2 * DIM)],
)
@pytest.mark.parametrize("adapted", [False, True])
def test_views_and_key_of_a_model_come_from_its_head(
    vectors: Tensor, method: str, query_views: int, label_views: int, key_dim: int, adapted: bool
) -> None:
    model = VectorDualEncoder(
        DIM, learned_adapter(DIM, 8) if adapted else None, learned_head(method, DIM, LABELS)
    ).eval()
    assert (model.view_count("queries"), model.view_count("labels"), model.key_dim) == (
        query_views,
        label_views,
        key_dim,
    )
    for side, views in (("queries", query_views), ("labels", label_views)):
        found = model.views(vectors, side, ROWS)
        assert found.shape == (LABELS, views, DIM)
        torch.testing.assert_close(found.norm(dim=2), torch.ones(LABELS, views))
        key = model(vectors, side, ROWS)
        assert torch.equal(key, model.key(found))
        torch.testing.assert_close(key.norm(dim=1), torch.ones(LABELS))
        assert key.shape == (LABELS, key_dim)


@every_side
def test_model_without_adapter_and_head_returns_its_input(vectors: Tensor, side: Side) -> None:
    model = VectorDualEncoder(DIM)
    assert torch.equal(model.views(vectors, side), vectors[:, None])
    assert torch.equal(model(vectors, side), vectors)


@every_side
def test_model_without_head_returns_the_vectors_of_the_adapter(vectors: Tensor, side: Side) -> None:
    adapter = learned_adapter(DIM, 8).eval()
    torch.testing.assert_close(VectorDualEncoder(DIM, adapter).eval()(vectors, side), adapter(vectors, side))


@every_side
def test_embedding_dropout_in_training_equals_dropout_before_normalisation(vectors: Tensor, side: Side) -> None:
    model = VectorDualEncoder(DIM)
    model.dropout.p = 0.3
    assert torch.equal(model.eval().views(vectors, side), vectors[:, None])
    torch.manual_seed(3)
    found = model.train().views(vectors, side)[:, 0]
    torch.manual_seed(3)
    expected = nn.functional.normalize(nn.functional.dropout(7 * vectors, 0.3), dim=1)  # vectors of another length
    torch.testing.assert_close(found, expected)
    assert 0 < (found == 0).float().mean() < 0.6


@every_side
@pytest.mark.parametrize("method", METHODS)
def test_head_is_applied_to_the_vectors_of_the_adapter(vectors: Tensor, method: str, side: Side) -> None:
    adapter, head = learned_adapter(DIM, 8).eval(), learned_head(method, DIM, LABELS)
    found = VectorDualEncoder(DIM, adapter, head).eval().views(vectors, side, ROWS)
    below = adapter(vectors, side)
    torch.testing.assert_close(found, VectorDualEncoder(DIM, None, head).eval().views(below, side, ROWS))


@every_side
@pytest.mark.parametrize("method", METHODS)
def test_keys_of_an_encoder_equal_the_keys_of_its_adapter_and_head_on_its_vectors(
    tiny_encoder: Encoder, method: str, side: Side
) -> None:
    encoder = tiny_encoder.with_adapter(learned_adapter(DIM, 8), learned_head(method, DIM, LABELS))
    bare = VectorTable(torch.from_numpy(tiny_encoder.encode(SAMPLE_TEXTS, 32)), side)
    expected = embed(encoder.vector_model().eval(), bare, encoder.dim, "cpu")
    np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS, 32, side=side), expected, atol=1e-6)
    if side == "queries":
        np.testing.assert_allclose(encoder.refine(bare.vectors.numpy()), expected, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_encoder_counts_label_positions_from_the_given_first_position(tiny_encoder: Encoder, method: str) -> None:
    encoder = tiny_encoder.with_adapter(None, learned_head(method, DIM, LABELS))
    whole = encoder.encode(SAMPLE_TEXTS, 32, side="labels")
    np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS[2:], 32, side="labels", first=2), whole[2:], atol=1e-6)


@every_side
@pytest.mark.parametrize("method", METHODS)
def test_views_in_bfloat16_are_close_to_views_in_single_precision(
    tiny_encoder: Encoder, method: str, side: Side
) -> None:
    encoder = tiny_encoder.with_adapter(learned_adapter(DIM, 8), learned_head(method, DIM, LABELS))
    model = copy.deepcopy(encoder.model).trainable()
    inputs = tiny_encoder.tokenise(SAMPLE_TEXTS, 32, side).batch(np.arange(LABELS), "cpu")
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.views(*inputs).float()
    torch.testing.assert_close(rounded, model.views(*inputs), rtol=0, atol=0.1)
    (rounded**3).sum().backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)
