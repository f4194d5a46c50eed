"""Logs: a log line that cannot be written ends no thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import forked

REPOSITORY = Path(__file__).parents[2]

# Program with a background thread whose steps fail and are logged. It ends after the third step.
FAILING_STEPS = """
import threading
from recollect.service.telemetry.logs import configure_logs
from recollect.service.versions.background import BackgroundThread

configure_logs()
steps, third = [], threading.Event()

def step():
    steps.append(None)
    if len(steps) == 3:
        third.set()
    raise OSError(f"step {len(steps)} failed")

BackgroundThread("steps", step, 0.01, "step_failed").start()
print(third.wait(60))
"""


def test_background_thread_continues_if_its_log_lines_cannot_be_written() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", FAILING_STEPS]
        found = forked.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=full, check=False)
    assert found.stdout == b"True\n"
