"""The locust file: wrong answers fail a load test, and wrong options give a message of one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtests.client import Address
from tests.loadtests.programs import last_line, run
from tests.loadtests.stub import StubAnswer, stub
from tests.test_architecture import REPOSITORY

NOWHERE = Address("127.0.0.1", 9)


def locust(address: Address, *options: object) -> subprocess.CompletedProcess[str]:
    host = f"http://{address.host}:{address.port}"
    fixed = ("-m", "locust", "-f", "loadtests/locustfile.py", "--headless", "--host", host, "--connections", 2)
    return run(*fixed, "--seconds", 0.5, *options)


def test_load_test_fails_if_the_service_gives_wrong_answers(built: Any) -> None:
    def answer(body: dict[str, Any]) -> StubAnswer:
        result = {"labels": [{"uid": "Law", "score": 0.5, "because": [{"share": 0.5}]}]}
        whole = {"results": [result] * len(body["queries"])} if "queries" in body else result
        return StubAnswer(200, {"version": built.version, **whole}, {"X-Index-Version": built.version})

    with stub(answer) as address:
        result = locust(address, "--store", built.store, "--stages", "steady,overload", "--rate", 50)
    assert result.returncode == 1, result.stderr
    summary = last_line(result)
    assert summary["failed"]
    for stage in summary["stages"]:
        assert stage["unexpected"] == {"answer differs from the version's": stage["statuses"]["200"]}
    assert "UNEXPECTED" in result.stderr


def test_locustfile_runs_from_any_working_directory(tmp_path: Path) -> None:
    locustfile = REPOSITORY / "loadtests" / "locustfile.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "locust", "-f", str(locustfile), "--list", "--store", "none"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "StageUser" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stages", "unknown"], "expected stages among steady"),
        (["--stages", "swap_storm"], "expected two versions for a swap storm"),
        (["--stages", "steady", "--queries", "no-such-file"], "no-such-file"),
    ],
)
def test_wrong_options_fail_with_a_message_of_one_line(built: Any, options: list[str], message: str) -> None:
    result = locust(NOWHERE, "--store", built.store, *options)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
