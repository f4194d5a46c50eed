"""The benchmark of a live memory prints both figures, and reports bad input as an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import live_memory


@pytest.mark.slow
def test_learning_curve_ends_at_the_rebuilt_bundle_and_new_labels_are_found(
    built: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_memory, "_INSTANCES", (1, 2))
    assert live_memory.main([str(built.store), str(built.dataset), "--labels", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    curve = found["learning curve"]
    assert curve["instances"] == [14, 28]
    assert len(curve["curve"]) == 11
    assert curve["curve"][0] == curve["frozen"]
    assert curve["curve"][-1] == curve["rebuilt"]
    assert curve["equal"]["same labels"] == 100
    assert curve["equal"]["largest difference"] < 1e-6
    recall = found["new labels"]["recall"]
    assert [*recall] == ["before", "label texts", "1 instances each", "2 instances each", "rebuilt, all instances"]
    assert recall["before"]["R@5"] == 0
    assert recall["label texts"]["R@5"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--queries", "0"], "argument --queries: expected a whole number of at least 1, found 0"),
        ([], "expected a bundle store, found none"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        live_memory.main([str(tmp_path / "none"), str(tmp_path), *flags])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
