"""The benchmark of reads during writes: no request fails, and bad input is reported in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests import bench_writes
from tests.loadtests.programs import last_line, run

# Waits longer for a free connection, so that all requests are sent on a busy machine.
PATIENT = """
import sys
from loadtests import bench_writes, load
load._GRACE_SECONDS = 60.0
sys.exit(bench_writes.main(sys.argv[1:]))
"""


def test_reads_and_writes_are_answered_and_measured(built: Any) -> None:
    result = run("-c", PATIENT, "--store", built.store, "--seconds", 0.5, "--reads", 20, "--writes", 10)
    assert result.returncode == 0, result.stderr
    figures = last_line(result)
    assert (figures["reads"], figures["writes"], figures["errors"]) == (60, 15, 0)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert 0 < figures["write_p50_ms"] <= figures["write_p99_ms"]
    assert figures["saturated_writes_per_second"] > 0
    assert figures["p99_ratio"] == pytest.approx(figures["during_writes_p99_ms"] / figures["p99_ms"], abs=1e-3)


@pytest.mark.parametrize("flags", [("--reads", "0"), ("--writes", "-1"), ("--seconds", "0"), ()])
def test_bad_input_is_reported_in_one_line(
    flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        bench_writes.main(["--store", str(tmp_path / "none"), *flags])
    assert exit_.value.code == 2
    expected = "expected positive values" if flags else "expected a bundle store, found none"
    assert expected in capsys.readouterr().err.splitlines()[-1]
