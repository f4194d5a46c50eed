"""The exported graph gives PyTorch's vectors, whatever the batch and the length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from index_builder.onnx_export import cosines, export_encoder
from service.encoder import QueryEncoder
from service.manifest import EncoderInfo
from tests.index_builder.conftest import write_tiny_encoder
from trainer.adapter import Adapter
from trainer.checkpoint import load_checkpoint
from trainer.encoder import Encoder
from trainer.pretrained import load_pretrained

TEXTS = ["a", "", "the tax on bread", "x" * 500, "é 音楽 👩‍👩‍👧", "two  spaces\tand\nlines", "word " * 40]


def compare(encoder: Encoder, graph: Path, lengths: list[int]) -> float:
    """The worst cosine over these lengths, batches of 1 to 7, and masks that leave out some of the tokens."""
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    random, worst = np.random.default_rng(7), 1.0
    for length in lengths:
        batch = 1 + length % 7
        ids = random.integers(4, 90, (batch, length))
        mask = (np.arange(length) < random.integers(1, length + 1, (batch, 1))).astype(np.int64)
        found = session.run(["vectors"], {"input_ids": ids, "attention_mask": mask})[0]
        with torch.inference_mode():
            expected = encoder.model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
        assert found.shape == expected.shape == (batch, encoder.dim)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        worst = min(worst, float(cosines(found, expected).min()))
    return worst


@pytest.mark.parametrize(("kind", "pooling"), [("bert", "cls"), ("distilbert", "mean")])
def test_tiny_encoders_export_for_every_length_and_batch(tmp_path: Path, kind: str, pooling: Any) -> None:
    folder = write_tiny_encoder(tmp_path / "encoder", kind)
    encoder = load_pretrained(str(folder), pooling, 128, 32, "cpu")
    export_encoder(encoder, tmp_path, "fp32")
    assert compare(encoder, tmp_path / "encoder.onnx", list(range(1, 129))) >= 0.999999
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "encoder.onnx", "tokenizer.json"]


def test_encoder_with_an_adapter_exports_with_it(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "encoder", "bert")
    frozen = load_pretrained(str(folder), "mean", 128, 32, "cpu")
    torch.manual_seed(7)
    adapter = Adapter(frozen.dim, 48)
    torch.nn.init.normal_(adapter.queries.narrow.weight, std=0.5)
    encoder = frozen.with_adapter(adapter)
    export_encoder(encoder, tmp_path, "fp32")
    assert compare(encoder, tmp_path / "encoder.onnx", [1, 2, 7, 8, 33, 128]) >= 0.999999
    assert compare(frozen, tmp_path / "encoder.onnx", [8]) < 0.9


def test_minilm_exports_for_every_length_and_batch(road: Any) -> None:
    encoder = load_checkpoint(road.run / "checkpoint", "cpu")
    graph = road.store / "bundles" / road.version / "encoder.onnx"
    assert compare(encoder, graph, [1, 2, 3, 7, 8, 33, 64, 127, 128]) >= 0.999999


def test_served_vectors_are_those_of_the_memory(road: Any) -> None:
    encoder = load_checkpoint(road.run / "checkpoint", "cpu")
    folder = road.store / "bundles" / road.version
    info = EncoderInfo(name="minilm", pooling="mean", precision="fp32", max_length=128, pad_id=0)
    served = QueryEncoder(folder, info, threads=1)
    vectors = served.encode(served.tokenise(TEXTS))
    assert cosines(vectors, encoder.encode(TEXTS, 128)).min() >= 0.999999


def test_cosines_are_exact_in_float64() -> None:
    first, second = np.array([[3, 4], [1, 0]], dtype=np.float32), np.array([[6, 8], [1, 1]], dtype=np.float32)
    np.testing.assert_allclose(cosines(first, second), [1, 1 / np.sqrt(2)], rtol=1e-15)


def test_export_is_silent(tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    encoder = load_checkpoint(tiny_run / "checkpoint", "cpu")
    capfd.readouterr()
    export_encoder(encoder, tmp_path, "int8")
    assert capfd.readouterr() == ("", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.onnx", "tokenizer.json"]
