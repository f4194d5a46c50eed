"""The benchmark of the memory log prints its rates, and leaves no files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests import bench_log


def test_benchmark_of_the_log_prints_rates_and_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"--location": tmp_path, "--seconds": 0.1, "--commits": 20, "--latency-ms": 1}
    assert bench_log.main([str(part) for each in given.items() for part in each]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(found[f"writes_per_second_{threads}"] > 0 for threads in (1, 8, 32))
    assert (found["commits"], found["opening_seconds"] > 0) == (20, True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
