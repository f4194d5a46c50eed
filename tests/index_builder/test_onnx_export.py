"""The exported encoder gives the same vectors as PyTorch for every batch size and text length."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from recollect.core.bundle.manifest import EncoderInfo, Precision
from recollect.core.encoder import QueryEncoder
from recollect.index_builder import onnx_export
from recollect.index_builder.errors import BuildError
from recollect.index_builder.onnx_export import WORST_COSINE, Sample, cosines, describe_encoder, export_encoder
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.pretrained import load_pretrained
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.classifier import Classifier
from recollect.trainer.settings import POOLINGS
from tests.tiny_runs import write_tiny_encoder

TEXTS = ["a", "", "the tax on bread", "x" * 500, "é 音楽 👩‍👩‍👧", "two  spaces\tand\nlines", "word " * 40]


def export(encoder: Encoder, folder: Path, precision: Precision, texts: list[str] = TEXTS) -> QueryEncoder:
    """Export an encoder and open it as the service does."""
    info = describe_encoder(encoder, precision)
    export_encoder(encoder, folder, info, Sample(texts, encoder.encode(texts, info.max_length)))
    return QueryEncoder.open(folder, info, threads=1)


def compare(encoder: Encoder, graph: Path, lengths: list[int]) -> float:
    """The least cosine between PyTorch and the exported graph.

    The inputs have these lengths, batches of 1 to 7 rows, and masks that hide some tokens.
    """
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


def test_exported_encoder_agrees_with_pytorch_for_every_length_batch_size_and_pooling(tmp_path: Path) -> None:
    folder = write_tiny_encoder(tmp_path / "encoder", "distilbert")
    encoder = load_pretrained(str(folder), "+".join(POOLINGS), 128, 32, "cpu")
    export(encoder, tmp_path, "fp32")
    assert compare(encoder, tmp_path / "encoder.onnx", list(range(1, 129))) >= 0.999999


def test_served_vectors_equal_those_of_the_trained_encoder(built: Any) -> None:
    encoder = load_checkpoint(built.run / "checkpoint", "cpu")
    folder = built.store / "bundles" / built.version
    info = EncoderInfo(name="minilm", pooling="mean", precision="fp32", max_length=128, pad_id=0)
    served = QueryEncoder.open(folder, info, threads=1)
    vectors = served.encode(served.tokenise(TEXTS))
    assert cosines(vectors, encoder.encode(TEXTS, 128)).min() >= 0.999999


def test_labels_are_truncated_at_their_own_length_as_in_training(built: Any) -> None:
    encoder = load_checkpoint(built.run / "checkpoint", "cpu")
    info = describe_encoder(encoder, "fp32")
    assert info.label_max_length == encoder.config.label_max_length < encoder.config.max_length
    texts = ["word " * 200, "a short label", "\x00 " + "été " * 100]
    served = QueryEncoder.open(built.store / "bundles" / built.version, info, threads=1)
    expected = encoder.encode(texts, info.label_max_length, side="labels")
    assert cosines(served.encode_texts([], texts), expected).min() >= 0.999999
    assert cosines(served.encode_texts(texts), encoder.encode(texts, info.max_length)).min() >= 0.999999


# Precisions.


def products(graph: Path) -> dict[str, int]:
    """Number of matrix products of each kind in a graph."""
    return dict(Counter(node.op_type for node in onnx.load(graph).graph.node if "MatMul" in node.op_type))


def test_int8_weights_are_so_small_that_sums_overflow_on_no_cpu(export_once: None, tmp_path: Path) -> None:
    encoder = load_pretrained(str(write_tiny_encoder(tmp_path / "encoder", "bert")), "mean", 128, 32, "cpu")
    onnx_export._export_graph(encoder.model, tmp_path / "full.onnx")
    onnx_export._quantise(tmp_path / "full.onnx", tmp_path / "encoder.onnx", set())
    weights = [
        onnx.numpy_helper.to_array(each)
        for each in onnx.load(tmp_path / "encoder.onnx").graph.initializer
        if each.data_type == onnx.TensorProto.INT8 and len(each.dims) == 2
    ]
    assert len(weights) == products(tmp_path / "encoder.onnx")["MatMulInteger"]
    largest = max(int(np.abs(each.astype(int)).max()) for each in weights)
    # Quantised activations are at most 255. A CPU without VNNI adds two products in 16 bits.
    assert 60 <= largest <= 32_767 // (2 * 255)


@pytest.mark.parametrize(("precision", "close"), [("fp16", 0), ("int8", 0), ("int8", 1.1)])
def test_adapter_is_part_of_the_export_in_every_precision(
    export_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, close: float
) -> None:
    monkeypatch.setattr(onnx_export, "_CLOSE_ENOUGH", close)
    frozen = load_pretrained(str(write_tiny_encoder(tmp_path / "encoder", "bert")), "mean", 128, 32, "cpu")
    torch.manual_seed(7)
    adapter = Adapter(frozen.dim, 48)
    torch.nn.init.normal_(adapter.queries.narrow.weight, std=0.5)
    served = export(frozen.with_adapter(adapter), tmp_path, precision)
    vectors = served.encode(served.tokenise(TEXTS))
    assert cosines(vectors, frozen.with_adapter(adapter).encode(TEXTS, 128)).min() >= WORST_COSINE[precision]
    assert cosines(vectors, frozen.encode(TEXTS, 128)).min() < 0.9


@pytest.mark.parametrize(("precision", "close"), [("fp32", 0), ("int8", 0), ("int8", 1.1)])
def test_classifier_vector_is_exported_next_to_the_dual_encoder_vector(
    export_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, close: float
) -> None:
    monkeypatch.setattr(onnx_export, "_CLOSE_ENOUGH", close)
    bare = load_pretrained(str(write_tiny_encoder(tmp_path / "encoder", "bert")), "mean", 128, 32, "cpu")
    torch.manual_seed(7)
    head = Classifier(bare.dim, labels=5)
    torch.nn.init.normal_(head.project.weight, std=0.5)
    torch.nn.init.normal_(head.project.bias, std=0.1)
    encoder = bare.with_adapter(None, head)
    served = export(encoder, tmp_path, precision)
    vectors = served.encode(served.tokenise(TEXTS))
    assert vectors.shape == (len(TEXTS), 2 * bare.dim)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    assert cosines(vectors, encoder.encode(TEXTS, 128)).min() >= WORST_COSINE[precision]
    np.testing.assert_allclose(np.linalg.norm(vectors[:, : bare.dim], axis=1), np.sqrt(0.5), atol=1e-3)
    assert cosines(vectors[:, : bare.dim], bare.encode(TEXTS, 128)).min() >= WORST_COSINE[precision]
    assert cosines(vectors[:, bare.dim :], bare.encode(TEXTS, 128)).min() < 0.9


def test_encoder_whose_numbers_exceed_half_precision_is_refused_and_the_error_names_the_next_step(
    tmp_path: Path,
) -> None:
    encoder = load_pretrained(str(write_tiny_encoder(tmp_path / "encoder", "bert")), "mean", 128, 32, "cpu")
    encoder.model.transformer.encoder.layer[0].intermediate.dense.weight.data *= 1e4
    encoder.model.transformer.encoder.layer[0].output.dense.weight.data *= 1e4
    with pytest.raises(BuildError, match=r"--precision fp16: .* larger ones for 'a'; use --precision fp32"):
        export(encoder, tmp_path, "fp16")
