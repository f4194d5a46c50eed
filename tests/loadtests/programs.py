"""Run the load test programs in separate processes, as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests import forked
from tests.test_architecture import REPOSITORY


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository root."""
    return forked.run([sys.executable, *map(str, command)], cwd=REPOSITORY, capture_output=True, text=True)


def last_line(result: subprocess.CompletedProcess[str]) -> Any:
    """Parse the JSON in the last line of a program's output."""
    assert result.stdout, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
