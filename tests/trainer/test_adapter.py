import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from recollect.trainer.encoding.checkpoint import load_checkpoint, save_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.errors import EncoderError
from recollect.trainer.heads.adapter import Adapter, Side
from recollect.trainer.heads.dual_encoder import VectorDualEncoder

DIM, HIDDEN = 32, 48


def learned(dim: int = DIM, hidden: int = HIDDEN, seed: int = 3) -> Adapter:
    """An adapter with random weights in evaluation mode."""
    adapter = Adapter(dim, hidden).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in adapter.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random) / math.sqrt(dim))
    return adapter


@pytest.fixture
def vectors() -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(20, DIM, generator=torch.Generator().manual_seed(5)), dim=-1)


@pytest.fixture
def adapted(tiny_encoder: Encoder) -> Encoder:
    """The tiny encoder with an adapter that changes the encoder's vectors."""
    return tiny_encoder.with_adapter(learned())


@pytest.fixture
def checkpoint(adapted: Encoder, tmp_path: Path) -> Path:
    save_checkpoint(adapted, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


class TestAdapter:
    @pytest.mark.parametrize("training", [False, True])
    def test_untrained_adapter_returns_its_input(self, vectors: torch.Tensor, training: bool) -> None:
        torch.testing.assert_close(Adapter(DIM, HIDDEN).train(training)(vectors), vectors)

    @pytest.mark.parametrize("side", ["queries", "labels"])
    def test_adapter_output_equals_the_formula_in_its_docstring(self, vectors: torch.Tensor, side: Side) -> None:
        adapter = learned()
        head = getattr(adapter, side)
        w1, b1, w2, b2 = (weight.detach().double().numpy() for weight in head.parameters())
        x = vectors.double().numpy()
        wide = x @ w1.T + b1
        change = (wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))) @ w2.T + b2
        expected = (x + change) / np.linalg.norm(x + change, axis=1, keepdims=True)
        found = adapter(vectors, side).detach().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        assert np.abs(found - x).max() > 0.1


@pytest.mark.parametrize("side", ["queries", "labels"])
def test_embedding_dropout_in_training_equals_dropout_before_normalisation(vectors: torch.Tensor, side: Side) -> None:
    model = VectorDualEncoder(DIM)
    model.dropout.p = 0.3
    assert torch.equal(model.eval().views(vectors, side), vectors[:, None])
    torch.manual_seed(3)
    found = model.train().views(vectors, side)[:, 0]
    torch.manual_seed(3)
    expected = torch.nn.functional.normalize(
        torch.nn.functional.dropout(7 * vectors, 0.3), dim=1
    )  # vectors of another length
    torch.testing.assert_close(found, expected)
    assert 0 < (found == 0).float().mean() < 0.6


class TestCheckpointWithAdapter:
    def test_checkpoint_without_adapter_removes_the_adapter_of_the_checkpoint_that_it_replaces(
        self, tiny_encoder: Encoder, checkpoint: Path
    ) -> None:
        save_checkpoint(tiny_encoder, checkpoint)
        assert not (checkpoint / "adapter.safetensors").exists()
        assert load_checkpoint(checkpoint, "cpu").model.adapter is None

    def test_checkpoint_whose_adapter_has_a_wrong_size_is_refused_and_the_error_names_the_file(
        self, checkpoint: Path
    ) -> None:
        save_file(learned(DIM, HIDDEN + 1).state_dict(), checkpoint / "adapter.safetensors")
        expected = r"checkpoint/adapter\.safetensors: expected weights of the shapes in recollect\.json, found"
        with pytest.raises(EncoderError, match=expected):
            load_checkpoint(checkpoint, "cpu")
