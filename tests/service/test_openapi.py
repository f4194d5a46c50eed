"""Schemathesis: every response of the service conforms to `/openapi.json`."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.processes import serving

# The list does not contain the check for server errors: 504 is the expected response to a short `timeout_ms`.
CHECKS = "status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"


@pytest.mark.skipif(not find_spec("schemathesis"), reason="schemathesis is not installed")
def test_every_response_is_documented_and_no_response_is_a_server_error(store: Path, tmp_path: Path) -> None:
    with serving(store, keys="front 0123456789abcdef 50\n") as server:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", CHECKS]
        options = ["--max-examples", "5", "--seed", "1", "--no-color", "--header", "X-API-Key: 0123456789abcdef"]
        found = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
        assert found.returncode == 0, found.stdout[-5000:]
        counted = re.findall(r'recollect_requests_total\{.*?status="(\d+)"\}', httpx.get(f"{server.url}/metrics").text)
        assert {status for status in counted if status >= "500"} <= {"504"}
        assert {"200", "422"} <= set(counted)
        assert "Traceback" not in server.log()
