from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint, save_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.errors import EncoderError
from recollect.trainer.heads.adapter import Adapter
from recollect.trainer.heads.classifier import Classifier
from recollect.trainer.heads.head import Head
from recollect.trainer.heads.projection import Projection
from recollect.trainer.heads.prototypes import Prototypes
from tests.trainer.conftest import SAMPLE_TEXTS, load

# Heads for six labels, by name.
HEADS: dict[str, Callable[[], Head]] = {
    "classifier": lambda: Classifier(32, 6),
    "prototypes": lambda: Prototypes(32, 6, ("text", "free", "centroid"), 2),
    "prototypes without free vectors": lambda: Prototypes(32, 6, ("text", "centroid"), 0),
    "classifier with projection": lambda: Classifier(32, 6, normalised=False, projection=12),
    "projection": lambda: Projection(32, 12),
}


class TestSavedCheckpoint:
    # The tiny distilbert has a case-sensitive tokenizer, and the tiny roberta a tokenizer without byte-level BPE.
    # AutoTokenizer would build other tokenizers for these two.
    @pytest.mark.parametrize(("kind", "pooling"), [("bert", "cls"), ("distilbert", "mean"), ("roberta", "mean")])
    def test_loaded_checkpoint_gives_the_vectors_of_the_saved_encoder(
        self, kind: str, pooling: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        encoder = load(request.getfixturevalue(f"tiny_{kind}").folder, pooling)
        save_checkpoint(encoder, tmp_path / "checkpoint")
        loaded = load_checkpoint(tmp_path / "checkpoint", "cpu")
        np.testing.assert_array_equal(loaded.encode(SAMPLE_TEXTS, 32), encoder.encode(SAMPLE_TEXTS, 32))
        assert (loaded.config, loaded.pad_id) == (encoder.config, encoder.pad_id)
        assert encoder_digest(loaded) == encoder_digest(encoder)

    @pytest.mark.parametrize("kind", ["distilbert", "roberta"])
    def test_checkpoint_can_be_loaded_as_a_hugging_face_folder(
        self, kind: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        encoder = load(request.getfixturevalue(f"tiny_{kind}").folder)
        save_checkpoint(encoder, tmp_path / "checkpoint")
        np.testing.assert_array_equal(
            load(tmp_path / "checkpoint").encode(SAMPLE_TEXTS, 32), encoder.encode(SAMPLE_TEXTS, 32)
        )

    @pytest.mark.parametrize("kind", HEADS)
    def test_loaded_checkpoint_with_a_head_gives_identical_keys(
        self, kind: str, tiny_bert: Any, tmp_path: Path
    ) -> None:
        adapter = Adapter(32, 4)
        torch.manual_seed(7)
        head = HEADS[kind]()
        for weight in head.parameters():
            torch.nn.init.normal_(weight)
        encoder = load(tiny_bert.folder).with_adapter(adapter, head)
        save_checkpoint(encoder, tmp_path / "checkpoint")
        loaded = load_checkpoint(tmp_path / "checkpoint", "cpu")
        assert loaded.dim == encoder.dim == head.key_dim
        for side in ("queries", "labels"):
            found, expected = (each.encode(SAMPLE_TEXTS, 32, side=side, first=2) for each in (loaded, encoder))
            np.testing.assert_array_equal(found, expected)
        assert encoder_digest(loaded) == encoder_digest(encoder)
        assert encoder_digest(encoder) != encoder_digest(encoder.with_adapter(adapter))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "expected a checkpoint's settings, .*`recollect train`"),
            ("", "expected a checkpoint's settings, found: .*train again"),
            (
                '{"format_version": 2, "pad_id": 0, "name": "x"}',
                "expected a checkpoint's settings, found: .*train again",
            ),
            ('{"format_version": 3, "new": "settings"}', "expected format_version 2, found 3"),
        ],
    )
    def test_missing_or_invalid_settings_are_refused(self, tmp_path: Path, content: str | None, message: str) -> None:
        if content is not None:
            (tmp_path / "recollect.json").write_text(content)
        with pytest.raises(EncoderError, match=rf"recollect\.json: {message}"):
            load_checkpoint(tmp_path, "cpu")

    @pytest.mark.parametrize(
        ("name", "content"), [("config.json", b"{"), ("model.safetensors", b"{"), ("tokenizer.json", None)]
    )
    def test_checkpoint_with_a_missing_or_broken_file_is_refused_and_the_error_names_its_folder(
        self, tiny_encoder: Encoder, tmp_path: Path, name: str, content: bytes | None
    ) -> None:
        save_checkpoint(tiny_encoder, tmp_path / "checkpoint")
        (tmp_path / "checkpoint" / name).unlink()
        if content is not None:
            (tmp_path / "checkpoint" / name).write_bytes(content)
        with pytest.raises(EncoderError, match=r"checkpoint.*: expected"):
            load_checkpoint(tmp_path / "checkpoint", "cpu")


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "RobertaForMaskedLM"])
def test_masked_language_model_has_the_same_digest_each_time_it_is_loaded(
    make_tiny_encoder: Callable[..., Any], architecture: str, tmp_path: Path
) -> None:
    # The model has no pooler. A randomly initialised pooler would change the digest at every load.
    folder = make_tiny_encoder(architecture.removesuffix("ForMaskedLM").lower(), architecture).folder
    first = load(folder)
    save_checkpoint(first, tmp_path / "checkpoint")
    digests = {
        encoder_digest(encoder) for encoder in (first, load(folder), load_checkpoint(tmp_path / "checkpoint", "cpu"))
    }
    assert len(digests) == 1


def test_digest_depends_on_every_weight_and_accepts_weights_without_axes(tiny_bert: Any) -> None:
    encoder = load(tiny_bert.folder)
    before = encoder_digest(encoder)
    with torch.no_grad():
        encoder.model.transformer.encoder.layer[1].output.dense.bias[3] += 1e-6
    changed = encoder_digest(encoder)
    encoder.model.register_buffer("scale", torch.tensor(1.0))
    assert len({before, changed, encoder_digest(encoder)}) == 3
