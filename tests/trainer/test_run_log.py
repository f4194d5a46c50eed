from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from recollect.trainer.training import run_log
from recollect.trainer.training.run_log import RunLog
from recollect.trainer.training.training_state import Progress
from tests.trainer.helpers import Clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_log, "time", clock)
    return clock


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def take_step(log: RunLog, progress: Progress, clock: Clock, seconds: float, loss: float = 1.0) -> None:
    clock.now += seconds
    progress.step += 1
    log.step(loss, learning_rate=0.5, examples=8, seconds=float(seconds), last=progress.step == log._bar.total)


def test_log_line_contains_mean_loss_and_speed_since_the_previous_line(tmp_path: Path, clock: Clock) -> None:
    progress = Progress()
    with RunLog(tmp_path, 100, progress, first=True) as log:
        for loss in (1.0, 2.0, 6.0, 10.0, 20.0):
            take_step(log, progress, clock, 4, loss)
        assert lines(tmp_path) == [{"step": 3, "loss": 3.0, "learning_rate": 0.5, "examples_per_second": 2.0}]
        take_step(log, progress, clock, 4, 30.0)
    assert [line["loss"] for line in lines(tmp_path)] == [3.0, 20.0]


def resume(folder: Path, text: str, step: int) -> list[dict[str, Any]]:
    (folder / "metrics.jsonl").write_text(text)
    progress = Progress(step=step)
    with RunLog(folder, 10, progress, first=True) as log:
        progress.step += 1
        log.write(loss=9.0)
    return lines(folder)


def test_resumed_run_removes_log_lines_of_steps_after_its_saved_state(tmp_path: Path) -> None:
    text = "".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in (0, 2, 4, 4, 5, 8))
    assert [line["step"] for line in resume(tmp_path, text, step=4)] == [0, 2, 4, 4, 5]
    assert lines(tmp_path)[-1] == {"step": 5, "loss": 9.0}


LINE = '{"step": 1, "loss": 1.0}\n'


@pytest.mark.parametrize("broken", ["", '{"step": ', "7\n", '{"step": "x"}\n', "\x00\x00\n"])
def test_incomplete_or_invalid_last_line_of_the_log_is_removed(tmp_path: Path, broken: str) -> None:
    assert [line["step"] for line in resume(tmp_path, LINE + broken, step=5)] == [1, 6]


def test_only_rank_0_writes_the_log(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {}
    for first in (True, False):
        folder = tmp_path / str(first)
        folder.mkdir()
        monkeypatch.setattr(sys, "stderr", Terminal())
        progress = Progress()
        with RunLog(folder, 1, progress, first) as log:
            log.write(validation_ndcg_5=1.0)
            take_step(log, progress, clock, 1)
        written[first] = sys.stderr.getvalue(), sorted(path.name for path in folder.iterdir())
    assert "loss 1.000, 8 examples/s" in written[True][0]
    assert written[True][1] == ["metrics.jsonl", "tensorboard"]
    assert written[False] == ("", [])


def tensorboard_values(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The values in TensorBoard, by name and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    return {name: [(event.step, event.value) for event in board.Scalars(name)] for name in board.Tags()["scalars"]}


def test_tensorboard_has_the_same_values_without_those_after_the_state_of_a_resumed_run(tmp_path: Path) -> None:
    for losses in ({4: 1.5, 5: 2.5, 7: 3.5}, {5: 9.5}):
        progress = Progress(step=4)
        with RunLog(tmp_path, 9, progress, first=True) as log:
            for progress.step, loss in losses.items():
                log.write(loss=loss, learning_rate=0.5)
        for path in (tmp_path / "tensorboard").iterdir():  # names begin with the second, and decide the order
            path.rename(path.with_name(path.name.replace("tfevents.", "tfevents.0")))
    assert tensorboard_values(tmp_path) == {"loss": [(4, 1.5), (5, 9.5)], "learning_rate": [(4, 0.5), (5, 0.5)]}
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == tensorboard_values(tmp_path)["loss"]


def test_without_tensorboard_only_metrics_jsonl_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with RunLog(tmp_path, 9, Progress(step=4), first=True) as log:
        log.write(loss=1.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl"]
