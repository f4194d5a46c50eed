"""How one process stops: at once if it is idle, otherwise after a drain, and at once on a second signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.service.http_helpers import PATIENCE_SECONDS, serving

# This wait for load balancers never ends, so a drain ends only if it skips the wait.
NEVER_QUIET = "from service.process import drain\ndrain._QUIET_SECONDS = 3600.0\n"
LONG_DRAIN = ("--drain-seconds", "3600")
# No collector of traces listens at this address.
TRACES = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "FASTAPI_OTEL_AUTO_CONFIGURE": "true"}

SIGTERM_DURING_IMPORT = """
import os, signal
class SignalOnImport:
    def find_spec(self, name, *rest):
        if name == "service.process.worker":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, SignalOnImport())
sys.exit(recollect.main())
"""


def test_new_client_sees_not_ready_during_the_drain(store: Path) -> None:
    with serving(store, *LONG_DRAIN, prelude=NEVER_QUIET) as server:
        httpx.get(f"{server.url}/health/ready").raise_for_status()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        answers = [httpx.get(f"{server.url}/health/ready") for _ in range(30)]
        assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(503, "draining")}
        server.process.send_signal(signal.SIGTERM)  # the second signal stops the server at once
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def test_idle_service_stops_without_waiting(store: Path) -> None:
    with serving(store, *LONG_DRAIN, prelude=NEVER_QUIET) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def test_service_exits_with_0_on_sigterm_during_its_start(store: Path) -> None:
    program = "import sys, recollect\n" + SIGTERM_DURING_IMPORT
    command = [sys.executable, "-c", program, "serve", "--store", str(store), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("variables", [{}, TRACES], ids=["no traces", "traces"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_service_logs_no_error_on_sigterm_directly_after_its_start(
    store: Path, workers: str, variables: dict[str, str]
) -> None:
    with serving(store, "--workers", workers, **variables) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert "Traceback" not in server.log()
        assert '"error"' not in server.log()


@pytest.mark.parametrize("pause_seconds", [0.0, 0.05, 0.15])
def test_service_logs_no_error_on_a_second_sigterm_directly_after_its_start(store: Path, pause_seconds: float) -> None:
    with serving(store) as server:
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(pause_seconds)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert "Traceback" not in server.log()
        assert '"error"' not in server.log()


# Program of a server whose answer to the query "slow" takes longer than the test.
SLOW = f"""{NEVER_QUIET}
import os, time
from pathlib import Path
from service.predictor import predictor
answer = predictor.Predictor.predict_together
def predict_together(self, requests, *rest):
    if any("slow" in queries for queries, _ in requests):
        Path(os.environ["STARTED"]).touch()
        time.sleep(3600)
    return answer(self, requests, *rest)
predictor.Predictor.predict_together = predict_together
"""


def test_service_logs_no_error_on_a_second_sigterm_during_a_request(store: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with (
        serving(store, *LONG_DRAIN, prelude=SLOW, STARTED=str(started)) as server,
        ThreadPoolExecutor() as pool,
    ):
        body = {"query": "slow"}
        answer = pool.submit(httpx.post, f"{server.url}/predict", json=body, timeout=PATIENCE_SECONDS)
        while not started.exists():
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert "Traceback" not in server.log()
        assert '"error"' not in server.log()
        with pytest.raises(httpx.RemoteProtocolError):
            answer.result()
