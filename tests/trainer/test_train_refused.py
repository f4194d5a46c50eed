"""`recollect train` fails with a clear error: diverging losses, full disks, bad flags and bad data."""

from __future__ import annotations

import contextlib
import math
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

import recollect
from recollect.trainer import run as walk
from recollect.trainer.encoding.checkpoint import encoder_digest, load_checkpoint
from recollect.trainer.memory import memory_writer
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.training import train as loop
from recollect.trainer.training.validation import Validation
from tests.trainer.conftest import load
from tests.trainer.helpers import files
from tests.trainer.runs import LEFT, Outcome, Train, results, weights


def test_gpu_without_enough_memory_is_reported_in_one_line(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of")

    monkeypatch.setattr(loop.Objective, "backward", full)
    outcome = train()
    assert outcome.status == 2
    assert "found too little (CUDA out of memory. Tried to allocate 2.00 GiB); lower --micro-batch" in outcome.message


class TestDiverging:
    def test_diverging_loss_is_reported_in_one_line_and_the_last_good_checkpoint_stays(
        self, train: Train, run_folder: Path, tiny_bert: Any
    ) -> None:
        outcome = train("--train", "full", "--learning-rate", 1e30)
        assert outcome.status == 2
        assert (
            "expected a finite loss, gradient and vectors, found a loss of nan; the checkpoint of step 0 is kept"
            in (outcome.message)
        )
        assert outcome.message.endswith("start again with --overwrite and a --learning-rate below 1e+30")
        assert encoder_digest(load_checkpoint(run_folder / "checkpoint", "cpu")) == encoder_digest(
            load(tiny_bert.folder)
        )
        assert not (run_folder / "memory").exists()
        assert train("--train", "full", "--overwrite", "--epochs", 1).status == 0

    @pytest.mark.parametrize(("what", "fraction"), [("adapter", 0.2), ("full", 0)])
    def test_training_that_diverges_in_its_last_step_writes_no_broken_checkpoint_or_memory(
        self, train: Train, run_folder: Path, what: str, fraction: float
    ) -> None:
        last = ["--max-steps", 1, "--validation-fraction", fraction]
        outcome = train("--train", what, "--learning-rate", 1e30, *last)
        assert all(weight.isfinite().all() and weight.abs().max() < 1e6 for weight in weights(run_folder).values())
        if outcome.status == 0:
            assert np.isfinite(open_memory(run_folder / "memory").keys).all()
        else:
            assert "--learning-rate below 1e+30" in outcome.message
            assert not (run_folder / "memory" / "memory.json").exists()

    def test_training_that_diverges_in_a_later_step_keeps_the_best_checkpoint_so_far(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backward = loop.Objective.backward
        scores: Iterator[float] = iter([1.0, 2.0])
        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
        losses: Iterator[float] = iter([0.5] * 8 + [math.inf])
        monkeypatch.setattr(
            loop.Objective, "backward", lambda self, batch: min(backward(self, batch), 9) * 0 + next(losses)
        )
        outcome = train()
        assert outcome.status == 2
        assert (
            "step 9: expected a finite loss, gradient and vectors, found a loss of inf; the checkpoint of step 6"
            in (outcome.message)
        )
        assert load_checkpoint(run_folder / "checkpoint", "cpu").model.adapter is not None


class TestFullDisk:
    @pytest.fixture(autouse=True)
    def without_tensorboard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Disable TensorBoard, because the file limit of the process applies to TensorBoard's thread too."""
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)

    @pytest.fixture
    def limited(self) -> Callable[[int], contextlib.AbstractContextManager[None]]:
        """Limit the size of each file, including the files that capture output for pytest."""

        @contextlib.contextmanager
        def limited(size: int) -> Iterator[None]:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        return limited

    def test_full_disk_while_saving_a_state_keeps_the_last_state_and_training_resumes_from_it(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch, limited: Callable[[int], Any]
    ) -> None:
        train("--train", "full", "--out", run_folder.with_name("never"))
        save_state = loop.save_state

        def fill_up(folder: Path, progress: Any, *arguments: Any) -> None:
            weights_alone = (run_folder / "checkpoint" / "model.safetensors").stat().st_size + 1_000
            with limited(weights_alone if progress.step == 8 else 2**30):  # AdamW's moments are twice as large
                save_state(folder, progress, *arguments)

        with monkeypatch.context() as full:
            full.setattr(loop, "save_state", fill_up)
            outcome = train("--train", "full", "--save-minutes", 0)
        assert outcome.status == 2
        assert f"{run_folder}/state: the training state cannot be saved (" in outcome.message
        assert "free some disk space and continue with --resume" in outcome.message
        assert [path.name for path in (run_folder / "state").iterdir()] == ["step-00000007"]
        assert load_checkpoint(run_folder / "checkpoint", "cpu").dim == 32
        assert train("--train", "full", "--resume").status == 0
        assert results(run_folder) == results(run_folder.with_name("never"))

    def test_full_disk_while_saving_a_checkpoint_keeps_the_last_good_checkpoint(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch, limited: Callable[[int], Any]
    ) -> None:
        save_checkpoint, before = walk.save_checkpoint, []
        scores: Iterator[float] = iter([1.0, 2.0])

        def fill_up(*arguments: Any) -> None:
            full = (run_folder / "checkpoint").is_dir()
            if full:
                before.append(files(run_folder / "checkpoint"))
            with limited(20_000 if full else 2**30):  # the weights do not fit
                save_checkpoint(*arguments)

        monkeypatch.setattr(Validation, "score", lambda *_: next(scores))
        monkeypatch.setattr(walk, "save_checkpoint", fill_up)
        outcome = train("--train", "full")
        assert outcome.status == 2
        assert str(run_folder) in outcome.message
        assert before == [files(run_folder / "checkpoint")]
        assert {path.name for path in run_folder.iterdir()} == LEFT["full"] - {"memory", "tensorboard"}
        assert load_checkpoint(run_folder / "checkpoint", "cpu").dim == 32

    def test_full_disk_while_saving_a_tokenizer_is_reported_in_one_line(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(self: Any, folder: Path) -> None:
            self.backend_tokenizer.save("/dev/full")  # tokenizers does not raise OSError

        monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fail)
        outcome = train()
        assert outcome.status == 2
        assert "No space left on device" in outcome.message
        assert not (run_folder / "checkpoint").exists()

    def test_run_with_a_full_disk_while_writing_the_memory_can_be_completed_by_running_again(
        self, train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch, limited: Callable[[int], Any]
    ) -> None:
        never = run_folder.with_name("never")
        train("--out", never)
        flush = memory_writer.flush

        def fill_up(file: Any) -> None:
            with limited(4_000 if file.name == str(run_folder / "memory" / "keys.npy") else 2**30):
                flush(file)

        with monkeypatch.context() as full:
            full.setattr(memory_writer, "flush", fill_up)
            outcome = train()
        assert outcome.status == 2
        assert str(run_folder) in outcome.message
        assert not (run_folder / "memory" / "memory.json").exists()
        assert train().status == 0
        assert results(run_folder) == results(never)
        assert {path.name for path in run_folder.iterdir()} == {path.name for path in never.iterdir()}


BAD_FLAGS: dict[str, tuple[list[object], str]] = {
    "method": (["--method", "svm"], "--method: expected 'rae', 'dexml', 'softtopk', "),
    "unknown flag": (
        ["--learning-rat", 1],
        "unrecognized arguments: --learning-rat 1; did you mean --learning-rate? see `recollect train --help`",
    ),
    "learning rate no number": (["--learning-rate", "nan"], "--learning-rate: expected a finite number; found 'nan'"),
    "large batch": (["--batch-size", 49], "--batch-size 49: expected at most 47, the instances to train on; choose a"),
    "lambda without held-out instances": (
        ["--validation-fraction", 0.005, "--validate-lambda", 0.5],
        "--validate-lambda: expected held-out instances, found none with --validation-fraction 0.005; choose",
    ),
    "tuning without held-out instances": (
        ["--validation-fraction", 0.005, "--tune", "yes"],
        "--tune: expected held-out instances, found none with --validation-fraction 0.005; choose a larger one",
    ),
    "fraction": (["--validation-fraction", 0.6], "--validation-fraction: expected less than or equal to 0.5"),
    "resume and overwrite": (
        ["--resume", "--overwrite"],
        "--resume, --overwrite: expected only one of these flags, found both",
    ),
}


@pytest.mark.parametrize(("more", "complaint"), BAD_FLAGS.values(), ids=BAD_FLAGS)
def test_bad_flag_is_refused_in_one_line_and_nothing_is_written(
    train: Train, run_folder: Path, more: list[object], complaint: str
) -> None:
    outcome = train(*more)
    assert (outcome.status, outcome.out) == (2, "")
    assert complaint in outcome.message
    assert not run_folder.exists()


BAD_DATA: dict[str, tuple[str, str, str]] = {
    "one label": (
        '{"uid": "a", "text": "red"}\n',
        '{"text": "red", "labels": [0]}\n' * 3,
        "found 1 label; use --epochs 0 to write a memory without training",
    ),
    "no label in use": (
        '{"uid": "a", "text": "red"}\n{"uid": "b", "text": "fox"}\n',
        '{"text": "a", "labels": []}\n',
        "found no instance with",
    ),
    "nothing to train on": ('{"uid": "a", "text": "red"}\n{"uid": "b", "text": "fox"}\n', "", "train.jsonl"),
}


@pytest.mark.parametrize(("labels", "instances", "complaint"), BAD_DATA.values(), ids=BAD_DATA)
def test_dataset_with_fewer_than_two_labels_in_use_is_refused_in_one_line_and_nothing_is_written(
    run_folder: Path,
    tiny_bert: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    labels: str,
    instances: str,
    complaint: str,
) -> None:
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "labels.jsonl").write_text(labels)
    (dataset / "train.jsonl").write_text(instances)
    words = ["train", dataset, "--out", run_folder, "--encoder", tiny_bert.folder, "--max-length", 16]
    outcome = Outcome(recollect.main([*map(str, words), "--label-max-length", "8"]), *capfd.readouterr())
    assert (outcome.status, outcome.out) == (2, "")
    assert complaint in outcome.message
    assert str(dataset) in outcome.message
    assert not run_folder.exists()


def test_device_cuda_without_a_gpu_is_refused_by_recollect_train(
    train: Train, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = train("--device", "cuda")
    assert outcome.status == 2
    assert "--device cuda: expected a CUDA GPU, found none; use --device cpu" in outcome.message
    assert not run_folder.exists()


def test_dataset_of_two_instances_and_two_labels_can_be_trained(
    tmp_path: Path, tiny_bert: Any, run_folder: Path
) -> None:
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    (dataset / "labels.jsonl").write_text('{"uid": "a", "text": "red"}\n{"uid": "b", "text": "fox"}\n')
    (dataset / "train.jsonl").write_text('{"text": "red paint", "labels": [0]}\n{"text": "lazy fox", "labels": [1]}\n')
    words = ["train", dataset, "--out", run_folder, "--encoder", tiny_bert.folder, "--max-length", 16]
    for what in ("adapter", "full"):
        more = ["--label-max-length", "8", "--train", what, "--epochs", "2", "--overwrite"]
        assert recollect.main([*map(str, words), *more]) == 0
        assert np.isfinite(open_memory(run_folder / "memory").keys).all()
