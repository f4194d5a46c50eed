"""Keys at a training step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect.trainer.distributed import ALONE
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.tokens import VectorTable
from recollect.trainer.heads.adapter import Side
from recollect.trainer.heads.dual_encoder import DualEncoder, VectorDualEncoder
from recollect.trainer.training.keys import KeyMaker
from tests.trainer.conftest import LABELS, TEXTS
from tests.trainer.helpers import learned_adapter

DIM = 12


@pytest.fixture
def model() -> DualEncoder:
    """A model in training mode, with dropout, whose adapter changes vectors."""
    torch.manual_seed(0)
    return VectorDualEncoder(DIM, learned_adapter(DIM, 16, dropout=0.5)).train()


def table(rows: int, side: Side = "queries") -> VectorTable:
    return VectorTable(torch.nn.functional.normalize(torch.randn(rows, DIM), dim=1), side)


def expected(model: DualEncoder, inputs: VectorTable) -> np.ndarray:
    """Compute the model's vectors of all rows at once, without dropout."""
    training = model.training
    with torch.no_grad():
        vectors: np.ndarray = model.eval()(inputs.vectors, inputs.side, torch.arange(len(inputs))).numpy()
    model.train(training)
    return vectors


def test_keys_equal_the_vectors_of_the_model_without_dropout(model: DualEncoder) -> None:
    queries, labels = table(9), table(4, "labels")
    keys = KeyMaker(model, queries, labels, "cpu", ALONE).at(0)
    np.testing.assert_allclose(keys.instances.own, expected(model, queries), atol=1e-6)
    np.testing.assert_allclose(keys.labels, expected(model, labels), atol=1e-6)
    assert keys.instances.own.dtype == keys.labels.dtype == np.float32


@pytest.mark.parametrize("kind", ["adapter", "whole encoder"])
def test_keys_computed_with_bfloat16_are_float32_unit_vectors_near_the_exact_keys(
    model: DualEncoder, tiny_encoder: Encoder, kind: str
) -> None:
    if kind == "adapter":
        inputs = model, table(9), table(4, "labels"), "cpu", ALONE
    else:
        texts, labels = tiny_encoder.tokenise(TEXTS, 32), tiny_encoder.tokenise(LABELS, 8)
        inputs = tiny_encoder.model, texts, labels, "cpu", ALONE
    exact, rounded = (KeyMaker(*inputs, autocast=autocast).at(0) for autocast in (False, True))
    tiny_encoder.model.eval()
    for vectors, expected in ((rounded.instances.own, exact.instances.own), (rounded.labels, exact.labels)):
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        difference = np.abs(vectors - expected).max()
        assert 1e-5 < difference < 0.05


def test_batches_of_a_slice_have_the_numbers_of_their_rows(tiny_encoder: Encoder) -> None:
    for inputs in (table(7), tiny_encoder.tokenise(TEXTS, 32)):
        *_, numbers = inputs[1:][2:].batch(np.array([3, 0]), "cpu")
        assert numbers.tolist() == [6, 3]
