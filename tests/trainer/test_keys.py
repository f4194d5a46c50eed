from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainer.conftest import LABELS, TEXTS
from tests.trainer.helpers import OwnShare, learned_adapter, learned_head
from trainer.encoder import Encoder
from trainer.heads.adapter import Side
from trainer.heads.head import Refinement, VectorModel
from trainer.keys import KeyMaker
from trainer.ranks import ALONE
from trainer.tokens import VectorTable

DIM = 12


@pytest.fixture
def model() -> Refinement:
    """One that changes vectors, and drops units out while it trains."""
    torch.manual_seed(0)
    return VectorModel(DIM, learned_adapter(DIM, 16, dropout=0.5)).train()


@pytest.fixture(params=["prime", "unidec"])
def headed(request: pytest.FixtureRequest, model: Refinement) -> Refinement:
    """With a method's head for four labels above the adapter."""
    model.head = learned_head(request.param, DIM, 4)
    return model.train()


def table(rows: int, side: Side = "queries") -> VectorTable:
    return VectorTable(torch.nn.functional.normalize(torch.randn(rows, DIM), dim=1), side)


def expected(model: Refinement, inputs: VectorTable) -> np.ndarray:
    """What the model makes of all rows at once, without dropout."""
    training = model.training
    with torch.no_grad():
        vectors: np.ndarray = model.eval()(inputs.vectors, inputs.side, torch.arange(len(inputs))).numpy()
    model.train(training)
    return vectors


def test_keys_are_the_models_vectors_without_dropout(model: Refinement) -> None:
    queries, labels = table(9), table(4, "labels")
    keys = KeyMaker(model, queries, labels, "cpu", ALONE).at(0)
    np.testing.assert_allclose(keys.instances, expected(model, queries), atol=1e-6)
    np.testing.assert_allclose(keys.labels, expected(model, labels), atol=1e-6)
    assert keys.instances.dtype == keys.labels.dtype == np.float32


def test_the_model_goes_on_training_and_random_draws_go_on_as_they_would(model: Refinement) -> None:
    maker = KeyMaker(model, table(9), table(4, "labels"), "cpu", ALONE)
    random = torch.get_rng_state()
    maker.at(0)
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    loss = model(torch.ones(1, DIM)).sum()
    loss.backward()
    assert model.adapter is not None
    assert model.adapter.queries.narrow.weight.grad is not None


def test_keys_are_made_once_a_step_and_anew_at_the_next(model: Refinement) -> None:
    queries, labels = table(9), table(4, "labels")
    maker = KeyMaker(model, queries, labels, "cpu", ALONE)
    first = maker.at(3)
    assert model.adapter is not None
    with torch.no_grad():
        model.adapter.queries.narrow.weight.mul_(-1)
        model.adapter.labels.narrow.weight.mul_(-1)
    assert maker.at(3) is first
    second = maker.at(4)
    np.testing.assert_allclose(second.instances, expected(model, queries), atol=1e-6)
    assert not np.allclose(second.labels, first.labels)


def test_keys_of_a_whole_encoder_are_what_it_encodes(tiny_encoder: Encoder) -> None:
    queries, labels = tiny_encoder.tokenise(TEXTS, 32), tiny_encoder.tokenise(LABELS, 8)
    keys = KeyMaker(tiny_encoder.model, queries, labels, "cpu", ALONE).at(0)
    tiny_encoder.model.eval()
    np.testing.assert_allclose(keys.instances, tiny_encoder.encode(TEXTS, 32), atol=1e-6)
    np.testing.assert_allclose(keys.labels, tiny_encoder.encode(LABELS, 8), atol=1e-6)


def test_keys_that_are_forgotten_are_made_anew(model: Refinement) -> None:
    maker = KeyMaker(model, table(9), table(4, "labels"), "cpu", ALONE)
    first = maker.at(3)
    maker.forget()
    second = maker.at(3)
    assert second is not first
    np.testing.assert_array_equal(second.instances, first.instances)


def test_who_is_alone_holds_each_vector_once(model: Refinement) -> None:
    keys = KeyMaker(model, table(9), table(4, "labels"), "cpu", ALONE).at(0)
    assert keys.joined is keys.instances


@pytest.mark.parametrize("kind", ["adapter", "whole encoder"])
def test_bfloat16_products_make_nearly_the_same_unit_vectors_in_single_precision(
    model: Refinement, tiny_encoder: Encoder, kind: str
) -> None:
    if kind == "adapter":
        inputs = model, table(9), table(4, "labels"), "cpu", ALONE
    else:
        texts, labels = tiny_encoder.tokenise(TEXTS, 32), tiny_encoder.tokenise(LABELS, 8)
        inputs = tiny_encoder.model, texts, labels, "cpu", ALONE
    exact, rounded = (KeyMaker(*inputs, autocast=autocast).at(0) for autocast in (False, True))
    tiny_encoder.model.eval()
    for name, vectors in vars(rounded).items():
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        difference = np.abs(vectors - vars(exact)[name]).max()
        assert 1e-5 < difference < 0.05


def test_keys_of_a_model_with_a_head_are_the_heads(headed: Refinement) -> None:
    queries, labels = table(9), table(4, "labels")
    keys = KeyMaker(headed, queries, labels, "cpu", ALONE).at(0)
    assert (keys.instances.shape, keys.labels.shape) == ((9, headed.key_dim), (4, headed.key_dim))
    np.testing.assert_allclose(keys.instances, expected(headed, queries), atol=1e-6)
    np.testing.assert_allclose(keys.labels, expected(headed, labels), atol=1e-6)


def test_each_rank_makes_its_share_of_the_keys(headed: Refinement) -> None:
    queries, labels = table(10), table(4, "labels")
    shares = [KeyMaker(headed, queries, labels, "cpu", OwnShare(rank, 3)).at(0) for rank in range(3)]
    assert sorted(len(share.instances) for share in shares) == [3, 3, 4]
    joined = np.concatenate([share.instances for share in shares])
    np.testing.assert_allclose(joined, expected(headed, queries), atol=1e-6)
    joined = np.concatenate([share.labels for share in shares])
    np.testing.assert_allclose(joined, expected(headed, labels), atol=1e-6)
