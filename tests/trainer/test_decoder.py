"""A decoder as the encoder: the vector of a text is that of its last token."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel

from recollect.core.encoder import QueryEncoder
from recollect.index_builder.onnx_export import Sample, describe_encoder, export_encoder
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.pretrained import load_pretrained
from recollect.trainer.encoding.tokens import TokenTable
from recollect.trainer.memory.memory import open_memory
from tests.trainer.conftest import TinyEncoder, Train

TEXTS = ["quick Brown fox", "x", "lazy dog " * 6, "garden chair red blue paint"]


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


def test_served_vectors_equal_those_of_the_trainer_also_of_a_text_without_tokens(
    tiny_llama: TinyEncoder, tmp_path: Path
) -> None:
    decoder = load_pretrained(str(tiny_llama.folder), "last", 32, 16, "cpu")
    decoder.tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])  # no special tokens
    texts = ["", *TEXTS]
    vectors = decoder.encode(texts, 32)
    assert np.isfinite(vectors).all()
    info = describe_encoder(decoder, "fp32")
    export_encoder(decoder, tmp_path, info, Sample(TEXTS, vectors[1:]))
    served = QueryEncoder.open(tmp_path, info, threads=1)
    for each in (served.encode_texts(texts), np.concatenate([served.encode_texts([text]) for text in texts])):
        np.testing.assert_allclose(each[0], vectors[0], atol=1e-3)
        assert (each[1:] * vectors[1:]).sum(axis=1).min() > 0.9999


def test_truncated_text_keeps_its_last_special_token(decoder: Encoder) -> None:
    ids, starts = (
        getattr(decoder.tokenise(["garden chair red blue paint " * 9, "x"], 8), name) for name in ("ids", "starts")
    )
    assert ids[starts[1] - 1] == ids[starts[2] - 1] == decoder.tokenizer.token_to_id("[SEP]")
    assert starts[1] == 8


def test_decoder_is_trained_and_its_pooling_is_saved(train: Train, tiny_llama: TinyEncoder, run_folder: Path) -> None:
    outcome = train("--encoder", tiny_llama.folder, "--pooling", "last", "--train", "full", "--max-steps", "2")
    assert outcome.status == 0
    trained = load_checkpoint(run_folder / "checkpoint", "cpu")
    assert trained.config.pooling == "last"
    memory = open_memory(run_folder / "memory")
    assert np.isfinite(memory.instance_keys).all()
