"""The load tests' programs, run as a user runs them: in processes of their own, as locust patches the one it is in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.test_architecture import REPOSITORY


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run Python on something of this repository."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )


def last_line(result: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a program ends with."""
    assert result.stdout, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
