from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from recollect.core.encoder import QueryEncoder
from recollect.core.predictor import Predictor

TEXTS = [
    *["tax", "A telescope that photographs galaxies", "", "音楽", "bread " * 60, "👩‍👩‍👧", "the court " * 20, "a"],
] * 5


@pytest.fixture(scope="module")
def encoder(predictor: Predictor) -> QueryEncoder:
    return predictor.encoder


def encode(encoder: QueryEncoder, texts: list[str]) -> np.ndarray:
    return encoder.encode(encoder.tokenise(texts))


def test_text_gets_the_same_vector_in_a_batch_of_mixed_lengths_as_alone(encoder: QueryEncoder) -> None:
    alone = np.concatenate([encode(encoder, [text]) for text in TEXTS[:8]])
    np.testing.assert_allclose(encode(encoder, TEXTS), np.tile(alone, (5, 1)), atol=1e-5)


def test_text_is_truncated_only_if_it_exceeds_the_token_limit_of_the_encoder(
    encoder: QueryEncoder, predictor: Predictor
) -> None:
    words = predictor.manifest.encoder.max_length - 2  # [CLS] and [SEP]
    tokens = encoder.tokenise(["tax " * words, "tax " * (words + 1), "tax"])
    assert tokens.truncated == [False, True, False]
    assert [len(ids) for ids in tokens.ids] == [words + 2, words + 2, 3]
    assert tokens.ids[0] == tokens.ids[1]


def test_truncation_and_padding_settings_in_the_tokenizer_file_are_ignored(
    predictor: Predictor, encoder: QueryEncoder, tmp_path: Path
) -> None:
    for file in predictor.bundle.folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["truncation"] = {"max_length": 4, "stride": 1, "strategy": "LongestFirst", "direction": "Left"}
    content["padding"] = {"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None}
    content["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    other = QueryEncoder.open(tmp_path, predictor.manifest.encoder, threads=1)
    assert other.tokenise(TEXTS) == encoder.tokenise(TEXTS)
