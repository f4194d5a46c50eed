"""`recollect train --from`: a training that starts from the checkpoint of an earlier run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recollect
from recollect.trainer.errors import TrainingError
from recollect.trainer.train_settings import TrainSettings
from tests.trainer.runs import Train, training, weights


def warm(run: Path, **given: object) -> TrainSettings:
    return TrainSettings(dataset=Path("data"), out=Path("new"), **{"from": run}, **given)  # type: ignore[arg-type]


@pytest.fixture
def earlier(train: Train, run_folder: Path) -> Path:
    assert train("--max-steps", 4, "--train", "adapter").status == 0
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
