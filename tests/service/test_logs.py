"""Logs: a log line that cannot be written ends no thread and delays no answer."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests import forked
from tests.processes import PATIENCE_SECONDS, before_each_batch, serving, until
from tests.service.test_workers import serving_processes, two_workers

REPOSITORY = Path(__file__).parents[2]

# Program with a background thread whose steps fail and are logged. It ends after the third step.
FAILING_STEPS = """
import threading
from recollect.service.telemetry.logs import configure_logs
from recollect.core.system.background import BackgroundThread

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


ERROR = before_each_batch("""
if any(query.startswith("zyzzyva") for query in queries):
    raise RuntimeError("deliberate error")
""")


def test_internal_error_is_logged_once_and_the_log_does_not_contain_the_query(store: Path) -> None:
    with serving(store, prelude=ERROR) as server:
        query = {"query": "zyzzyva, in private"}
        failed = server.client.post("/predict", json=query, headers={"X-Request-Id": "r-1"})
        assert (failed.status_code, failed.json()["code"]) == (500, "internal")
        assert "deliberate error" not in failed.text
        assert (failed.headers["x-request-id"], failed.headers["x-index-version"]) == ("r-1", "v3")
        event = server.wait_for("request_failed")
        assert (event["request_id"], event["path"]) == ("r-1", "/predict")
        assert "deliberate error" in event["exception"]
        assert server.ask("bread").status_code == 200
        assert "zyzzyva" not in server.log()
        assert server.log().count("Traceback") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_service_answers_and_counts_dropped_lines_while_nobody_reads_its_log(store: Path, workers: int) -> None:
    flags = ["--store", str(store), "--port", "0", "--workers", str(workers), "--access-log", "--poll-seconds", "0.05"]
    command = [sys.executable, "-m", "recollect", "serve", *flags]
    with forked.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
            served = (event for event in map(json.loads, process.stderr) if event["event"] == "serving")
            url = [next(served)["url"] for _ in range(workers)][0]
            port = int(url.rpartition(":")[2])
            request = b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n"
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.settimeout(PATIENCE_SECONDS)
                for _ in range(50):
                    connection.sendall(100 * request)
                    answers = b""
                    while answers.count(b"HTTP/1.1 200") < 100:
                        answers += connection.recv(65_536)
            if workers == 2:  # the supervisor logs that it replaces a worker
                killed = min(two_workers(store))
                os.kill(killed, signal.SIGKILL)
                until(lambda: len(serving_processes(store) - {killed}) == 2)
            metrics = httpx.get(f"{url}/metrics").text.splitlines()
            (dropped,) = [line for line in metrics if line.startswith("recollect_log_lines_dropped_total ")]
            assert 0 < float(dropped.split()[1]) < 5000
            start = time.monotonic()
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
            assert time.monotonic() - start < 20
        finally:
            process.kill()
