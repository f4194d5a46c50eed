"""The benchmark of the service: its output has every figure, and no request fails."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.replica import ReplicaError, replica
from tests.loadtests.programs import last_line, run

# Runs the benchmark with a longer wait for a free connection, so that all requests are sent on a busy machine.
PATIENT_BENCHMARK = """
import sys
from loadtests import bench_service, load
load._GRACE_SECONDS = 60.0
sys.exit(bench_service.main(sys.argv[1:]))
"""


def test_last_output_line_is_json_with_every_figure(built: Any) -> None:
    result = run("-c", PATIENT_BENCHMARK, "--store", built.store, "--seconds", 1)
    assert result.returncode == 0, result.stderr
    figures = last_line(result)
    assert figures.pop("errors") == 0
    assert figures.pop("cpu")
    assert set(figures) == {
        *("raw_cpu_ms", "served_cpu_ms", "cpu_ratio", "loop_cpu_ms"),
        *("raw_p50_ms", "light_p50_ms", "http_p50_ms", "light_p99_ms"),
        *("saturated_qps", "steady_p99_ms", "swap_p99_ms", "swaps", "swap_seconds"),
    }
    assert figures["http_p50_ms"] == pytest.approx(figures["light_p50_ms"] - figures["raw_p50_ms"], abs=0.002)
    assert all(figure > 0 for name, figure in figures.items() if name != "http_p50_ms")
    assert figures["light_p50_ms"] <= figures["light_p99_ms"]
    assert abs(figures["cpu_ratio"] - figures["served_cpu_ms"] / figures["raw_cpu_ms"]) < 0.01


def test_flag_that_serve_does_not_know_fails_with_a_message_of_one_line(built: Any) -> None:
    with pytest.raises(ReplicaError, match=r"^.*no-such-flag.*\Z"), replica(built.store, ["--no-such-flag"]):
        pytest.fail("the server must not start")
