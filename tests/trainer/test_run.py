"""`recollect train --epochs 0`, which writes a memory without training, and the checks of the run folder."""

import dataclasses
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint
from recollect.trainer.encoding.encoder import Encoder
from recollect.trainer.errors import TrainingError
from recollect.trainer.memory.memory import DEFAULTS, open_memory
from recollect.trainer.recipe import Recipe
from recollect.trainer.run_folder import RunFolder
from recollect.trainer.train_settings import TrainSettings
from recollect.trainer.training.training_state import Progress
from tests.trainer.conftest import load
from tests.trainer.helpers import files
from tests.trainer.runs import Outcome, Train


@pytest.fixture
def train(toy: Path, tiny_bert: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Train:
    """Returns a function that runs `recollect train --epochs 0` on the toy dataset with the tiny encoder."""

    def run(*flags: object, dataset: Path | None = None) -> Outcome:
        usual = ["--out", tmp_path / "run", "--encoder", tiny_bert.folder, "--epochs", 0]
        usual += ["--max-length", 32, "--label-max-length", 8]
        capfd.readouterr()
        status = recollect.main([str(argument) for argument in ("train", dataset or toy, *usual, *flags)])
        return Outcome(status, *capfd.readouterr())

    return run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_run_without_epochs_writes_the_pretrained_encoder_and_its_memory(
    train: Train, run_folder: Path, tiny_bert: Any
) -> None:
    outcome = train()
    assert (outcome.status, outcome.out) == (0, "")
    assert "14 instances, 5 labels" in outcome.err
    assert "19 keys, 19 written now at " in outcome.err
    memory = open_memory(run_folder / "memory")
    encoder = load_checkpoint(run_folder / "checkpoint", "cpu")
    texts = [json.loads(line)["text"] for line in (run_folder / "memory" / "labels.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(memory.keys[14:], encoder.encode(texts, 8), atol=1e-6)
    assert memory.defaults == DEFAULTS
    assert encoder.model.adapter is None
    assert encoder_digest(encoder) == encoder_digest(load(tiny_bert.folder)) == memory.plan.encoder_sha256


def test_interrupted_run_exits_with_130_and_the_next_run_continues(
    train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Encoder.encode

    def encode(self: Encoder, texts: Any, *arguments: Any) -> np.ndarray:
        if len(texts) == 5:
            raise KeyboardInterrupt
        return real(self, texts, *arguments)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(Encoder, "encode", encode)
        outcome = train()
    assert outcome.status == 130
    assert outcome.err.endswith("recollect train: interrupted\n")
    assert "19 keys, 5 written now at " in train().err
    assert open_memory(run_folder / "memory").keys.shape == (19, 32)


def test_run_with_different_settings_or_another_dataset_is_refused_and_the_error_names_the_difference(
    train: Train, run_folder: Path, toy: Path
) -> None:
    train()
    before = files(run_folder)
    outcome = train("--max-length", 16)
    assert outcome.status == 2
    assert "found one that differs in encoder; choose another --out, or replace it with --overwrite" in outcome.err
    with (toy / "train.jsonl").open("a") as file:
        file.write('{"uid": "new", "text": "red fox", "labels": [0]}\n')
    outcome = train()
    assert outcome.status == 2
    assert "differs in instances, dataset_sha256;" in outcome.err
    assert files(run_folder) == before


def test_overwrite_replaces_memory_and_checkpoint(train: Train, run_folder: Path) -> None:
    train()
    assert train("--max-length", 16, "--key-dtype", "float16", "--overwrite").status == 0
    assert open_memory(run_folder / "memory").keys.dtype == np.float16
    assert load_checkpoint(run_folder / "checkpoint", "cpu").config.max_length == 16


def test_unreadable_memory_is_refused_and_replaced_by_overwrite(train: Train, run_folder: Path) -> None:
    train()
    (run_folder / "memory" / "memory.json").write_text("{")
    outcome = train()
    assert outcome.status == 2
    assert "found checkpoint, memory of unknown origin; choose another --out, or replace it with --overwrite" in (
        outcome.message
    )
    assert train("--overwrite").status == 0
    assert open_memory(run_folder / "memory").keys.shape == (19, 32)


def test_run_folder_with_unknown_files_is_refused_without_overwrite(train: Train, run_folder: Path) -> None:
    (run_folder / "checkpoint").mkdir(parents=True)
    (run_folder / "checkpoint" / "weights").write_text("mine")
    outcome = train()
    assert outcome.status == 2
    expected = f"{run_folder}: expected a run folder or an empty folder, found checkpoint of unknown origin"
    assert expected in outcome.message
    assert files(run_folder) == {"checkpoint/weights": b"mine"}
    assert train("--overwrite").status == 0


def test_run_folder_with_a_checkpoint_but_without_a_memory_is_completed(train: Train, run_folder: Path) -> None:
    train()
    before = files(run_folder)
    shutil.rmtree(run_folder / "memory")
    assert train().status == 0
    assert files(run_folder) == before


def test_environment_variable_sets_a_value_unless_the_flag_is_given(
    train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_POOLING", "cls")
    monkeypatch.setenv("RECOLLECT_MAX_LENGTH", "7")
    train()
    config = load_checkpoint(run_folder / "checkpoint", "cpu").config
    assert (config.pooling, config.max_length) == ("cls", 32)


BAD_SETTINGS: dict[str, tuple[list[object], str]] = {
    "unknown encoder": (["--encoder", "no-such/encoder"], "--encoder no-such/encoder: expected a Hugging Face"),
    "unknown pooling": (
        ["--pooling", "cls+top"],
        "--pooling: expected auto, cls, max, mean, mean_sqrt_len_tokens, weightedmean, last",
    ),
    "format of other files": (["--format", "pecos"], "expected Y.txt or label_map.txt or output-items.txt"),
}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("flags", "complaint"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_run_with_a_bad_setting_exits_with_2_and_prints_one_line(
    train: Train, run_folder: Path, flags: list[object], complaint: str
) -> None:
    outcome = train(*flags)
    message = [line for line in outcome.err.splitlines() if "14 instances" not in line]
    assert (outcome.status, outcome.out) == (2, "")
    assert len(message) == 1, outcome.err
    assert message[0].startswith("recollect train: ")
    assert complaint in message[0]
    assert not run_folder.exists()


def test_run_whose_run_folder_is_a_file_exits_with_2(train: Train, run_folder: Path) -> None:
    run_folder.write_text("precious")
    outcome = train()
    assert outcome.status == 2
    assert f"recollect train: {run_folder}" in outcome.err
    assert run_folder.read_text() == "precious"


@pytest.mark.usefixtures("offline")
def test_encoder_is_found_in_the_hub_cache_and_uses_its_declared_pooling(
    train: Train, run_folder: Path, tiny_bert: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "hub" / "models--acme--tiny"
    snapshot = cached / "snapshots" / ("a" * 40)
    shutil.copytree(tiny_bert.folder, snapshot)
    (snapshot / "1_Pooling").mkdir()
    (snapshot / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert train("--encoder", "acme/tiny").status == 0
    saved = json.loads((run_folder / "checkpoint" / "recollect.json").read_text())
    assert (saved["name"], saved["pooling"]) == ("acme/tiny", "cls")


def test_second_recollect_train_is_refused_while_another_writes_the_same_run_folder(
    train: Train, run_folder: Path
) -> None:
    train()
    descriptor = os.open(run_folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        outcome = train()
    finally:
        os.close(descriptor)
    assert outcome.status == 2
    assert "another `recollect train` writes here" in outcome.err


def test_run_with_training_does_not_replace_a_memory_that_was_written_without_training(
    train: Train, run_folder: Path
) -> None:
    train()
    before = files(run_folder)
    outcome = train("--epochs", 1, "--batch-size", 4)
    assert outcome.status == 2
    assert "expected no memory here, found one written without training" in outcome.message
    assert files(run_folder) == before


class TestRunFolder:
    @pytest.fixture
    def folder(self, run_folder: Path) -> RunFolder:
        run_folder.mkdir()
        return RunFolder(run_folder)

    def recipe(self, **settings: Any) -> Recipe:
        given = TrainSettings(dataset=Path("data"), out=Path("run"), batch_size=4, **settings)
        encoder = {"name": "tiny", "pooling": "mean", "max_length": 32, "label_max_length": 8}
        return Recipe.of(
            given, encoder, encoder_sha256="e" * 64, dataset_sha256="d" * 64, instances=14, labels=5, device="cpu"
        )

    def test_device_ranks_and_micro_batch_may_change_only_after_training(self, folder: RunFolder) -> None:
        recipe = self.recipe()
        other_device = dataclasses.replace(recipe, micro_batch=8, ranks=2, device="cuda")
        folder.begin_training(recipe, resume=False, overwrite=False)
        with pytest.raises(TrainingError, match="found one that differs in micro_batch, ranks, device; continue with"):
            folder.begin_training(other_device, resume=True, overwrite=False)
        folder.write_training(recipe, Progress(step=8))
        assert not folder.begin_training(other_device, resume=False, overwrite=False)

    @pytest.mark.parametrize("content", ["{", '{"format_version": 1, "recipe": {"seed": 0}}'])
    def test_run_folder_with_an_invalid_training_json_is_refused_without_overwrite(
        self, folder: RunFolder, content: str
    ) -> None:
        (folder.path / "training.json").write_text(content)
        with pytest.raises(TrainingError, match=r"training\.json: expected a recipe of format_version 2, found: "):
            folder.begin_training(self.recipe(), resume=True, overwrite=False)
        assert folder.begin_training(self.recipe(), resume=False, overwrite=True)

    def test_overwrite_removes_only_the_files_of_a_run(self, folder: RunFolder) -> None:
        (folder.path / "notes.txt").write_text("mine")
        for name in ("checkpoint", "state", "frozen", "tensorboard"):
            (folder.path / name).mkdir()
        (folder.path / "memory").write_text("a file where a folder belongs")
        (folder.path / "metrics.jsonl").write_text("{}\n")
        folder.begin_training(self.recipe(), resume=False, overwrite=True)
        assert sorted(path.name for path in folder.path.iterdir()) == ["notes.txt", "training.json"]

    def test_run_without_training_does_not_replace_a_training(self, train: Train, folder: RunFolder) -> None:
        folder.begin_training(self.recipe(), resume=False, overwrite=False)
        outcome = train()
        assert outcome.status == 2
        assert "expected no training here, found one; choose another --out" in outcome.err
        assert folder.training() is not None
        assert train("--overwrite").status == 0
        assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoint", "memory"]
