"""The locust file: right answers pass, answers of two versions fail, wrong options give a message of one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.loadtests.stub import StubAnswer, stub
from tests.processes import serving
from tests.test_architecture import REPOSITORY

KEY = "load-test-0123456789abcdef"
NOWHERE = "http://127.0.0.1:9"


def locust(host: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Run locust in a new interpreter, because it changes the process that it runs in."""
    fixed = ("-f", "loadtests/locustfile.py", "--headless", "--host", host, "--users", 4, "--spawn-rate", 4)
    command = [sys.executable, "-m", "locust", *fixed, "--run-time", "3s", *options]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([*map(str, command)], cwd=REPOSITORY, env=environment, capture_output=True, text=True)


def test_right_answers_of_a_real_service_pass(built: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"loadtest {KEY}\n")
    with serving(built.store, "--api-keys", str(keys)) as server:
        # Long enough to draw each kind, also on a busy machine.
        result = locust(server.url, "--store", built.store, "--api-key", KEY, "--run-time", "12s")
    assert result.returncode == 0, result.stderr
    for kind in ("short", "batch", "explain"):
        assert f"POST     {kind}" in result.stdout + result.stderr


def test_answers_that_name_two_versions_fail_the_load_test(built: Any) -> None:
    with stub(lambda body: StubAnswer(200, {"version": "v2"}, {"X-Index-Version": "v1"})) as address:
        result = locust(f"http://{address.host}:{address.port}", "--store", built.store)
    assert result.returncode == 1, result.stderr
    assert "header and body name different versions" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--store", "no-such-store"], "no-such-store: expected a bundle store, found none"),
        (["--queries", "no-such-file"], "no-such-file"),
    ],
)
def test_wrong_options_fail_with_a_message_of_one_line(built: Any, options: list[str], message: str) -> None:
    result = locust(NOWHERE, "--store", built.store, *options)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
