"""The benchmark of live entries: both servers answer, and bad input is reported in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests import bench_live
from tests.loadtests.programs import last_line, run


@pytest.mark.slow
def test_requests_with_and_without_live_entries_are_measured(built: Any, tmp_path: Path) -> None:
    additions = tmp_path / "new.jsonl"
    additions.write_text("".join(json.dumps({"uid": f"new {n}", "text": f"text {n}"}) + "\n" for n in range(30)))
    result = run("-m", "loadtests.bench_live", "--store", built.store, "--add", additions, "--seconds", 0.5)
    assert result.returncode == 0, result.stderr
    figures = last_line(result)
    assert figures["live_entries"] == 30
    for kind in ("query", "batch"):
        medians = [figures[kind][side]["p50_ms"] for side in ("with", "without")]
        assert min(medians) > 0
        assert figures[kind]["p50_ratio"] == pytest.approx(medians[0] / medians[1], abs=2e-3)


@pytest.mark.parametrize("seconds", ["0", "1"])
def test_bad_input_is_reported_in_one_line(seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        bench_live.main(["--store", str(tmp_path / "none"), "--add", str(tmp_path / "none"), "--seconds", seconds])
    assert exit_.value.code == 2
    expected = "expected a positive value of --seconds" if seconds == "0" else "expected a bundle store, found none"
    assert expected in capsys.readouterr().err.splitlines()[-1]
