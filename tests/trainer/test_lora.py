"""`train --lora`: only small matrices are trained, and checkpoints have them merged into the weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from recollect.trainer.encoding.checkpoint import load_checkpoint, save_checkpoint
from recollect.trainer.encoding.lora import add_lora, merged_weights
from recollect.trainer.encoding.pretrained import load_pretrained
from tests.trainer.conftest import SAMPLE_TEXTS, TinyEncoder, Train
from tests.trainer.runs import training

RANK = 2


def test_checkpoint_with_merged_matrices_gives_the_vectors_of_the_model_in_training(
    tiny_llama: TinyEncoder, tmp_path: Path
) -> None:
    encoder = load_pretrained(str(tiny_llama.folder), "last", 32, 16, "cpu")
    before = encoder.encode(SAMPLE_TEXTS, 32)
    add_lora(encoder.model.trainable().transformer, RANK, seed=0)
    np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS, 32), before, atol=1e-6)
    for name, weight in encoder.model.named_parameters():
        assert weight.requires_grad == ("lora_" in name), name
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    trained = encoder.encode(SAMPLE_TEXTS, 32)
    assert (trained * before).sum(axis=1).min() < 0.99
    save_checkpoint(encoder, tmp_path / "checkpoint")
    np.testing.assert_allclose(
        load_checkpoint(tmp_path / "checkpoint", "cpu").encode(SAMPLE_TEXTS, 32), trained, atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode(SAMPLE_TEXTS, 32), trained, atol=1e-6)  # training goes on unchanged


def test_decoder_is_trained_by_its_matrices_alone(train: Train, tiny_llama: TinyEncoder, run_folder: Path) -> None:
    flags = ["--encoder", tiny_llama.folder, "--pooling", "last", "--train", "full", "--max-steps", "3"]
    outcome = train(*flags, "--lora", RANK, "--learning-rate", "0.01", "--validation-fraction", 0)
    assert outcome.status == 0, outcome.err
    before = load_file(tiny_llama.folder / "model.safetensors")
    after = load_file(run_folder / "checkpoint" / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "_proj" in name}
    for name in changed:
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) <= RANK
    assert training(run_folder)["recipe"]["lora"] == RANK
    assert training(run_folder)["measured"]["trainable_parameters"] < sum(each.numel() for each in before.values()) / 2
    assert merged_weights(load_checkpoint(run_folder / "checkpoint", "cpu").model.transformer) is None


@pytest.mark.parametrize("given", [["--train", "adapter"], ["--encoder", "static"]], ids=["adapter", "static"])
def test_lora_without_a_trained_transformer_is_refused(train: Train, given: list[str]) -> None:
    outcome = train(*given, "--lora", RANK)
    assert outcome.status == 2
    assert (
        f"--lora: expected --train full and an encoder with a transformer, found {' '.join(given)}" in outcome.message
    )


def test_missing_package_is_named_before_anything_is_written(
    train: Train, tiny_llama: TinyEncoder, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else find(name, *rest))
    outcome = train("--encoder", tiny_llama.folder, "--train", "full", "--lora", RANK)
    assert outcome.status == 2
    assert (
        f"--lora {RANK}: expected the package peft, found it not installed; pip install 'recollect-xmc[lora]'"
        in outcome.message
    )
    assert not run_folder.exists()
