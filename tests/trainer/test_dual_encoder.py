from __future__ import annotations

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
METHODS = ["prime", "unidec"]
every_side = pytest.mark.parametrize("side", ["queries", "labels"])


@pytest.fixture
def vectors() -> Tensor:
    return nn.functional.normalize(torch.randn(LABELS, DIM, generator=torch.Generator().manual_seed(5)), dim=1)


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
