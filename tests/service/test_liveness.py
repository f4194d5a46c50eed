"""A process whose batch hangs, or whose event loop is blocked, reports it and ends itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.processes import PATIENCE_SECONDS, metric, serving
from tests.service.test_drain import SLOW

HANGS = ("--max-seconds", "0.1", "--hang-seconds", "0.2")
# Program of a server whose query "slow" never ends, and which may be silent for so many seconds.
SILENT = SLOW + "\nfrom recollect.service.process import liveness\nliveness.HANG_SECONDS = {seconds}\n"


def test_hung_batch_fails_both_health_checks_and_sets_a_metric(store: Path, tmp_path: Path) -> None:
    prelude = SILENT.format(seconds=3600)
    with serving(store, *HANGS, "--drain-seconds", "0", prelude=prelude, STARTED=str(tmp_path / "started")) as server:
        assert metric(server.client, "recollect_batcher_hung") == 0
        assert server.client.get("/health/live").status_code == 200
        assert server.ask("slow").status_code == 504
        assert server.wait_for("batcher_hung")["busy_threads"] == 1
        for path in ("/health/ready", "/health/live"):
            problem = server.client.get(path)
            assert (problem.status_code, problem.json()["code"]) == (503, "hung")
        assert metric(server.client, "recollect_batcher_hung") == 1


def test_process_with_a_hung_batch_ends_itself_with_status_1(store: Path, tmp_path: Path) -> None:
    prelude = SILENT.format(seconds=5)
    with serving(store, *HANGS, prelude=prelude, STARTED=str(tmp_path / "started")) as server:
        assert server.ask("slow").status_code == 504
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 1
        assert server.events("process_hung")


def test_process_whose_event_loop_is_blocked_ends_itself_with_status_1(store: Path, tmp_path: Path) -> None:
    prelude = (
        SILENT.format(seconds=5)
        + "from recollect.service.http import json_route\njson_route.parse_body = lambda *_: time.sleep(3600)"
    )
    with serving(store, prelude=prelude, STARTED=str(tmp_path / "started")) as server:
        with pytest.raises(httpx.TransportError):
            server.ask("any")
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 1


def test_watchdog_ends_the_process_when_its_log_is_blocked() -> None:
    program = """
import os, time
from recollect.service.process import liveness
from recollect.service.telemetry.logs import configure_logs
configure_logs()
liveness.HANG_SECONDS = 0.0
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
with liveness.Watchdog():
    time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as process:
        assert process.wait(timeout=PATIENCE_SECONDS) == 1
