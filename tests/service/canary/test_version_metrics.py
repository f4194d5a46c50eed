"""Metrics by version: they exist only for open versions, with one process and with several workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.service.settings import SHARED_METRICS

REPOSITORY = Path(__file__).parents[3]

# Program that opens versions a and b, closes a, and prints the metrics.
PROGRAM = """
import sys
from recollect.service.telemetry.metrics import Metrics
metrics = Metrics()
for version in "ab":
    metrics.by_version.requests_of(version).answered.inc()
    metrics.by_version.shadow_of(version).overlap.observe(0.5)
metrics.by_version.keep_only({"b"})
sys.stdout.buffer.write(metrics.exposition())
"""


@pytest.mark.parametrize("shared", [False, True], ids=["one process", "several workers"])
def test_metrics_of_a_closed_version_are_removed(tmp_path: Path, shared: bool) -> None:
    variables = {**os.environ, SHARED_METRICS: str(tmp_path)} if shared else dict(os.environ)
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    text = subprocess.run(command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, check=True).stdout
    assert 'recollect_version_requests_total{outcome="answered",version="b"} 1.0' in text
    assert 'recollect_shadow_overlap_sum{version="b"} 0.5' in text
    assert 'version="a"' not in text
    assert "recollect_ready" in text
