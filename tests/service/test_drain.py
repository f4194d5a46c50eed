"""How one process stops: at once when idle, not before who asks has seen it, at once when told twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.service.http_helpers import PATIENCE_SECONDS, serving

# Nothing is ever quiet for long enough, so that what ends at once is seen to.
NEVER_QUIET = "from service.process import worker\nworker._QUIET_SECONDS = 3600.0\n"
AT_LENGTH = ("--drain-seconds", "3600")

TOLD_EARLY = """
import os, signal
class ToldWhenLoading:
    def find_spec(self, name, *rest):
        if name == "service.process.worker":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, ToldWhenLoading())
sys.exit(recollect.main())
"""


def test_who_keeps_no_connection_sees_that_the_service_stops(store: Path) -> None:
    with serving(store, *AT_LENGTH, prelude=NEVER_QUIET) as server:
        httpx.get(f"{server.url}/health/ready").raise_for_status()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        answers = [httpx.get(f"{server.url}/health/ready") for _ in range(30)]
        assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(503, "draining")}
        server.process.send_signal(signal.SIGTERM)  # told twice: at once
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def test_whom_nobody_asks_stops_at_once(store: Path) -> None:
    with serving(store, *AT_LENGTH, prelude=NEVER_QUIET) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def test_a_service_that_is_told_to_stop_while_it_starts_exits_0(store: Path) -> None:
    program = "import sys, recollect\n" + TOLD_EARLY
    command = [sys.executable, "-c", program, "serve", "--store", str(store), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
