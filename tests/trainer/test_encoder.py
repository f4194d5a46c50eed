from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModel

from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.encoding.pretrained import load_pretrained, packaged_folder
from recollect.trainer.encoding.tokens import batches_by_length
from recollect.trainer.errors import EncoderError

TEXTS = ["quick Brown fox", "Café naïve ABC", "x", "lazy dog " * 30, "garden chair red blue paint", "the lawn the lawn"]


def reference(folder: Path, ids: list[int], pooling: str) -> np.ndarray:
    """Compute the unit vector of one text with transformers, without padding and mask."""
    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy()
    pooled = hidden[0] if pooling == "cls" else hidden.mean(axis=0)
    vector: np.ndarray = pooled / np.linalg.norm(pooled)
    return vector


def truncate(ids: list[int], max_length: int) -> list[int]:
    """Return the first tokens and the last special token."""
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]]


@pytest.mark.parametrize(("kind", "pooling"), [("bert", "cls"), ("distilbert", "mean"), ("roberta", "mean")])
def test_vectors_of_a_batch_equal_those_of_transformers_with_one_text_at_a_time(
    kind: str, pooling: Any, request: pytest.FixtureRequest
) -> None:
    folder, tokenizer = request.getfixturevalue(f"tiny_{kind}")
    encoder = load_pretrained(str(folder), pooling, 16, 8, "cpu")
    expected = [reference(folder, truncate(tokenizer.encode(text).ids, 16), pooling) for text in TEXTS]
    np.testing.assert_allclose(encoder.encode(TEXTS, 16), expected, atol=1e-5)


def test_packaged_minilm_equals_transformers_with_mean_pooling(minilm: Encoder) -> None:
    texts = ["how do I sort a list", "a very long title " * 40]
    tokenizer = Tokenizer.from_file(str(packaged_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()  # the published tokenizer pads every text to 128 tokens
    ids = [tokenizer.encode(text).ids for text in texts]
    expected = [reference(packaged_folder(), truncate(row, 128), "mean") for row in ids]
    np.testing.assert_allclose(minilm.encode(texts, 128), expected, atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 20])
def test_order_and_batch_size_do_not_change_vectors(
    tiny_encoder: Encoder, monkeypatch: pytest.MonkeyPatch, batch_tokens: int
) -> None:
    expected = tiny_encoder.encode(TEXTS, 32)
    monkeypatch.setattr("recollect.trainer.encoding.encoder._BATCH_TOKENS", {"cpu": batch_tokens})
    monkeypatch.setattr("recollect.trainer.encoding.tokens._CHUNK_TEXTS", 4)
    np.testing.assert_allclose(tiny_encoder.encode(TEXTS[::-1], 32)[::-1], expected, atol=1e-5)


def test_text_that_gives_no_tokens_has_a_unit_vector(tiny_encoder: Encoder) -> None:
    assert np.linalg.norm(tiny_encoder.encode(["\u200b\x01"], 32)) == pytest.approx(1, abs=1e-6)


def test_vector_that_is_not_finite_is_refused_and_the_error_quotes_the_text(
    make_tiny_encoder: Callable[..., Any],
) -> None:
    encoder = load_pretrained(str(make_tiny_encoder("bert").folder), "mean", 32, 8, "cpu")
    with torch.no_grad():
        quick = encoder.tokenizer.token_to_id("quick")
        encoder.model.transformer.embeddings.word_embeddings.weight[quick] = float("nan")
    with pytest.raises(EncoderError, match="the vector of 'quick fox' is not finite; use another encoder"):
        encoder.encode(["lazy dog", "quick fox"], 32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_gpu_gives_the_same_vectors_as_the_cpu(tiny_bert: Any) -> None:
    on_cpu, on_gpu = (load_pretrained(str(tiny_bert.folder), "mean", 32, 8, device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(on_gpu.encode(TEXTS, 32), on_cpu.encode(TEXTS, 32), atol=1e-4)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 40), st.integers(1, 40))
def test_batches_by_length_contain_each_row_once_longest_first_within_both_limits(
    lengths: list[int], batch_tokens: int, batch_rows: int
) -> None:
    batches = [rows.tolist() for rows in batches_by_length(np.array(lengths, dtype=np.int64), batch_tokens, batch_rows)]
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    in_order = [lengths[row] for rows in batches for row in rows]
    assert in_order == sorted(lengths, reverse=True)
    assert all(len(rows) == 1 or len(rows) * lengths[rows[0]] <= batch_tokens for rows in batches)
    assert all(1 <= len(rows) <= batch_rows for rows in batches)
