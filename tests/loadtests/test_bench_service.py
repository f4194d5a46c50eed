"""The service's benchmark: one JSON line, every figure measured, no request failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.test_architecture import REPOSITORY


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "loadtests" / "bench_service.py", *arguments]
    return subprocess.run([str(part) for part in command], cwd=REPOSITORY, capture_output=True, text=True)


def test_the_last_line_printed_is_json_with_every_figure(road: Any) -> None:
    result = bench("--store", road.store, "--seconds", 1)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures.pop("errors") == 0
    assert set(figures) == {
        *("raw_cpu_ms", "served_cpu_ms", "cpu_ratio", "raw_p50_ms", "raw_paced_p50_ms"),
        *("light_p50_ms", "light_p99_ms", "saturated_qps"),
    }
    assert all(figure > 0 for figure in figures.values())
    assert figures["light_p50_ms"] <= figures["light_p99_ms"]
    assert abs(figures["cpu_ratio"] - figures["served_cpu_ms"] / figures["raw_cpu_ms"]) < 0.01


def test_a_store_that_cannot_be_served_is_told_in_one_line(tmp_path: Path) -> None:
    result = bench("--store", tmp_path / "none")
    assert result.returncode == 2
    assert result.stderr.strip().endswith("none: expected a bundle store, found none; run `recollect build`")
    assert "Traceback" not in result.stderr
