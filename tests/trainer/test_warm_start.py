"""`recollect train --from`: a training that starts from the checkpoint of an earlier run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import recollect
from recollect.trainer.encoding.checkpoint import load_checkpoint
from recollect.trainer.errors import TrainingError
from recollect.trainer.memory.memory import open_memory
from recollect.trainer.train_settings import TrainSettings
from tests.trainer.runs import KILLED, LENGTHS, Moment, Outcome, Train, run_recollect, texts, training, weights


def warm(run: Path, **given: object) -> TrainSettings:
    return TrainSettings(dataset=Path("data"), out=Path("new"), **{"from": run}, **given)  # type: ignore[arg-type]


@pytest.fixture
def earlier(train: Train, run_folder: Path) -> Path:
    assert train("--max-steps", 4, "--train", "adapter", "--learning-rate", 0.01).status == 0
    return run_folder


def test_run_starts_from_the_adapter_of_the_earlier_run(lesson: Path, earlier: Path) -> None:
    new = earlier.with_name("new")
    recollect.train(lesson, out=new, from_=earlier, max_steps=1, learning_rate=1e-12)
    before, after = weights(earlier), weights(new)
    assert before.keys() == after.keys()
    for name in before:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)
    assert training(new)["recipe"]["train"] == "adapter"


def test_settings_of_the_checkpoint_are_those_of_the_earlier_run(earlier: Path) -> None:
    settings = warm(earlier)
    assert (settings.max_length, settings.label_max_length, settings.pooling) == (16, 8, "mean")
    assert settings.encoder == str(earlier / "checkpoint")
    assert warm(earlier, max_length=16, train="full").train == "full"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_length": 32}, "expected --max-length 16, as in that run, found 32; omit --max-length"),
        ({"pooling": "cls"}, "expected --pooling mean, as in that run, found cls; omit --pooling"),
        ({"encoder": "minilm"}, "found --encoder minilm; omit one of the two flags"),
    ],
)
def test_setting_that_does_not_fit_the_checkpoint_is_refused(
    earlier: Path, given: dict[str, object], message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        warm(earlier, **given)


def test_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="expected a run folder with a checkpoint, found no recollect.json"):
        warm(tmp_path)


# ---- How labels are read ----


@pytest.fixture
def again(lesson: Path, earlier: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `recollect train` on the lesson dataset, into the folder `new` beside the earlier run."""

    def run(*more: object) -> Outcome:
        capfd.readouterr()
        command = ["train", lesson, "--out", earlier.with_name("new"), *more]
        return Outcome(recollect.main([*map(str, command)]), *capfd.readouterr())

    return run


@pytest.mark.parametrize("door", ["from", "encoder", "vectors"])
def test_memory_without_training_has_the_label_keys_of_the_earlier_run(
    again: Callable[..., Outcome], earlier: Path, door: str
) -> None:
    start = ["--encoder", earlier / "checkpoint", *LENGTHS] if door == "encoder" else ["--from", earlier]
    outcome = again(*start, *(["--vectors", earlier] if door == "vectors" else []), "--epochs", 0)
    assert outcome.status == 0, outcome.err
    new = earlier.with_name("new")
    before, after = open_memory(earlier / "memory"), open_memory(new / "memory")
    np.testing.assert_allclose(after.keys, before.keys, atol=1e-5)
    encoder = load_checkpoint(new / "checkpoint", "cpu")
    assert encoder.config.label_alpha == 0.5
    texts_alone = encoder.encode(texts(new, "labels.jsonl"), 8, side="labels")
    assert np.abs(after.keys[after.plan.instances :] - texts_alone).max() > 0.1
    assert (new / "frozen").is_dir() == (door != "vectors")


def test_memory_without_training_that_is_killed_is_finished_by_the_same_command(
    lesson: Path, earlier: Path, tmp_path: Path
) -> None:
    command = ["train", lesson, "--out", tmp_path / "new", "--from", earlier, "--epochs", 0]
    killed = Moment("recollect.trainer.run_memory.write_memory", 2)  # after the vectors below the adapter
    assert run_recollect(command, tmp_path / "log", killed) == [KILLED]
    assert recollect.main([*map(str, command)]) == 0
    keys = [open_memory(run / "memory").keys for run in (earlier, tmp_path / "new")]
    np.testing.assert_allclose(*keys, atol=1e-5)


def test_training_reads_labels_as_the_adapter_does_from_which_it_starts(
    again: Callable[..., Outcome], earlier: Path
) -> None:
    head = ["--from", earlier, "--method", "ova", "--train", "head", "--max-steps", 1]
    assert again(*head).status == 0  # alone, `ova` reads the texts
    assert training(earlier.with_name("new"))["recipe"]["label_inputs"] == "enriched"
    outcome = again(*head, "--label-inputs", "text", "--overwrite")
    assert outcome.status == 2
    assert "--label-inputs text: expected enriched, as for the adapter of" in outcome.message


def test_training_of_the_whole_encoder_says_that_it_reads_the_texts_of_labels_alone(
    again: Callable[..., Outcome], earlier: Path
) -> None:
    outcome = again("--from", earlier, "--train", "full", "--max-steps", 1)
    assert "its adapter read label texts mixed with instances, and reads the texts alone now" in outcome.err
    assert load_checkpoint(earlier.with_name("new") / "checkpoint", "cpu").config.label_alpha == 0
