"""A decoder as the encoder: the vector of a text is that of its last token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import AutoModel

from index_builder.onnx_export import _export_graph
from tests.trainer.conftest import TinyEncoder, Train
from trainer.encoding.checkpoint import load_checkpoint
from trainer.encoding.encoder import Encoder
from trainer.encoding.pretrained import load_pretrained
from trainer.encoding.tokens import TokenTable
from trainer.memory.memory import open_memory

TEXTS = ["quick Brown fox", "x", "lazy dog " * 6, "garden chair red blue paint"]


@pytest.fixture(scope="module")
def tiny_llama(make_tiny_encoder: Callable[..., TinyEncoder]) -> TinyEncoder:
    return make_tiny_encoder("llama")


@pytest.fixture
def decoder(tiny_llama: TinyEncoder) -> Encoder:
    return load_pretrained(str(tiny_llama.folder), "last", 32, 16, "cpu")


def inputs(decoder: Encoder) -> TokenTable:
    return decoder.tokenise(TEXTS, 32)


def test_vectors_equal_those_of_transformers_with_padding_on_the_left(
    decoder: Encoder, tiny_llama: TinyEncoder
) -> None:
    ids, mask, *_ = (part.numpy() for part in inputs(decoder).batch(np.arange(len(TEXTS)), "cpu")[:2])
    lengths = mask.sum(axis=1)
    on_the_left = [np.roll(row, ids.shape[1] - length) for row, length in zip(ids, lengths, strict=True)]
    mask = np.arange(ids.shape[1]) >= (ids.shape[1] - lengths)[:, None]
    model = AutoModel.from_pretrained(tiny_llama.folder).eval()
    with torch.inference_mode():
        hidden = model(
            input_ids=torch.tensor(np.array(on_the_left)),
            attention_mask=torch.tensor(mask.astype(np.int64)),
            position_ids=torch.tensor(np.maximum(np.cumsum(mask, axis=1) - 1, 0)),
        ).last_hidden_state.numpy()
    expected = hidden[:, -1] / np.linalg.norm(hidden[:, -1], axis=1, keepdims=True)
    np.testing.assert_allclose(decoder.encode(TEXTS, 32), expected, atol=1e-5)


def test_vector_of_a_text_depends_on_its_first_word(decoder: Encoder) -> None:
    first, second = decoder.encode(["garden red chair", "quick red chair"], 32)
    assert first @ second < 0.9999


def test_exported_graph_agrees_with_pytorch_for_padded_batches(decoder: Encoder, tmp_path: Path) -> None:
    _export_graph(decoder.model, tmp_path / "decoder.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "decoder.onnx"), providers=["CPUExecutionProvider"])
    for rows in ([0], [0, 1, 2, 3], [1, 3]):
        ids, mask, *_ = inputs(decoder).batch(np.array(rows), "cpu")
        found: Any = session.run(["vectors"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
        np.testing.assert_allclose(found, decoder.encode([TEXTS[row] for row in rows], 32), atol=1e-4)


def test_decoder_is_trained_and_its_pooling_is_saved(train: Train, tiny_llama: TinyEncoder, run_folder: Path) -> None:
    outcome = train("--encoder", tiny_llama.folder, "--pooling", "last", "--train", "full", "--max-steps", "2")
    assert outcome.status == 0
    trained = load_checkpoint(run_folder / "checkpoint", "cpu")
    assert trained.config.pooling == "last"
    memory = open_memory(run_folder / "memory")
    assert np.isfinite(memory.instance_keys).all()
