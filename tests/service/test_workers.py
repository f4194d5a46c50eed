"""A service of several worker processes: workers are replaced, swap versions, share metrics and stop together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from recollect.service.store.store import Store
from recollect.service.versions.activation import Activation
from recollect.service.versions.replicas import reports
from tests.service.http_helpers import PATIENCE_SECONDS, Server, serving
from tests.service.light_stores import TOP_K
from tests.service.test_model_manager import Load

POLLS = ("--workers", "2", "--poll-seconds", "0.05")


def serving_processes(store: Path) -> set[int]:
    found = reports(Activation(Store(store), None).replicas)
    return {int(report.replica.split("-")[-2]) for report in found if report.state == "serving"}


def two_workers(store: Path, killed: int = 0) -> set[int]:
    """Wait until two workers report the version that they serve; return their process ids.

    `killed` must not be one of them.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found := serving_processes(store)) < 2 or killed in found:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def metric_sum(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_all_workers_swap_versions_and_no_answer_mixes_versions(store: Path) -> None:
    with serving(store, *POLLS) as server, Load(server.url) as load:
        activation = Activation(Store(store), None)
        for version in ("v5", "v3", "v5"):
            record = activation.activate(version)
            assert [report.version for report in activation.wait(record, PATIENCE_SECONDS, 2)] == [version] * 2
        until = time.monotonic() + PATIENCE_SECONDS
        while load.versions[-1] != "v5":
            assert time.monotonic() < until
    assert load.wrong == []
    assert set(load.versions) == set(TOP_K)


def test_metrics_are_the_sums_over_all_workers(store: Path) -> None:
    with serving(store, *POLLS) as server:
        for number in range(20):  # each request has a new connection, so that both workers receive requests
            httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"}).raise_for_status()
        assert metric_sum(server, 'recollect_requests_total{path="/predict",status="200"}') == 20
        assert metric_sum(server, "recollect_ready") == 2
        assert metric_sum(server, 'recollect_bundle_info{version="v3"}') == 2


def test_killed_worker_is_replaced_while_the_other_worker_answers(store: Path) -> None:
    with serving(store, *POLLS) as server:
        killed = min(two_workers(store))
        os.kill(killed, signal.SIGKILL)
        assert server.wait_for("worker_died")["status"] == -signal.SIGKILL
        answered = 0
        for number in range(10):  # the killed worker was idle, so no connection breaks
            answered += httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"}).status_code == 200
        assert answered == 10
        two_workers(store, killed)
        assert metric_sum(server, "recollect_ready") == 2


BLOCKED = """
from recollect.service.process import supervisor
supervisor.HANG_SECONDS = 1.0
"""


@pytest.mark.parametrize("first", [True, False], ids=["first worker", "second worker"])
def test_suspended_worker_is_killed_and_replaced(store: Path, first: bool) -> None:
    with serving(store, *POLLS, prelude=BLOCKED) as server:
        stopped = sorted(two_workers(store))[0 if first else 1]
        os.kill(stopped, signal.SIGSTOP)
        hung = server.wait_for("worker_hung")
        assert hung["process"] == stopped
        two_workers(store, stopped)
        for number in range(10):
            httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"}).raise_for_status()


BLOCKS_EVENT_LOOP = f"""{BLOCKED}
import time
from recollect.service.process import server
work = server._work
def work_and_block(*arguments, **named):
    from recollect.service.http import middleware
    call = middleware.RequestContext.__call__
    async def blocked(self, scope, *channels):
        if scope.get("path") == "/block":
            time.sleep(3600)
        await call(self, scope, *channels)
    middleware.RequestContext.__call__ = blocked
    work(*arguments, **named)
server._work = work_and_block
"""


def test_worker_with_a_blocked_event_loop_is_killed_and_replaced(store: Path) -> None:
    with serving(store, *POLLS, prelude=BLOCKS_EVENT_LOOP) as server:
        before = two_workers(store)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{server.url}/block", timeout=PATIENCE_SECONDS)
        hung = server.wait_for("worker_hung")["process"]
        assert hung in before
        two_workers(store, hung)


def test_workers_answer_all_requests_before_they_stop_on_sigterm(store: Path) -> None:
    with serving(store, *POLLS) as server, Load(server.url) as load:
        workers = two_workers(store)
        while len(load.versions) < 50:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        load.stop()
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)
    assert load.wrong == []  # every request was answered correctly


# Program of a server whose answer to the query "slow" waits until a file exists.
SLOW = """
import os, time
from pathlib import Path
from recollect.service.process import server
work = server._work
def work_slowly(*arguments, **named):
    from recollect.service.predictor.predictor import Predictor
    from recollect.service.process import drain
    drain._QUIET_SECONDS = 3.0  # a stopping worker must not exit between two requests of a test on a slow machine
    answer = Predictor.predict_together
    def predict_together(self, requests, *rest):
        if any(query == "slow" for queries, _ in requests for query in queries):
            Path(os.environ["STARTED"]).touch()
            while not Path(os.environ["GO"]).exists():
                time.sleep(0.01)
        return answer(self, requests, *rest)
    Predictor.predict_together = predict_together
    work(*arguments, **named)
server._work = work_slowly
"""


def test_signal_to_supervisor_and_workers_at_once_interrupts_no_answer(store: Path, tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    with serving(store, *POLLS, prelude=SLOW, STARTED=str(started), GO=str(go)) as server, ThreadPoolExecutor() as pool:
        workers = two_workers(store)
        body = {"query": "slow"}
        answer = pool.submit(httpx.post, f"{server.url}/predict", json=body, timeout=PATIENCE_SECONDS)
        try:
            while not started.exists():
                time.sleep(0.01)
            for process in (*workers, server.process.pid):
                os.kill(process, signal.SIGTERM)
            server.wait_for("draining", count=2)
            for _ in range(30):  # meanwhile the supervisor's own signal reaches the busy worker
                assert httpx.get(f"{server.url}/health/ready").status_code == 503
        finally:
            go.touch()
        assert answer.result().status_code == 200
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def test_all_workers_stop_when_the_supervisor_is_killed(store: Path) -> None:
    with serving(store, *POLLS) as server:
        workers = two_workers(store)
        server.process.kill()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                while True:
                    os.kill(worker, 0)
                    assert time.monotonic() < deadline
                    time.sleep(0.02)


def test_error_for_a_store_that_cannot_be_served_is_printed_once(tmp_path: Path, store: Path, built: Any) -> None:
    (store / "bundles" / "v3" / "tokenizer.json").write_bytes(b"{}")
    command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), "--port", "0", "--workers", "3"]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith("recollect serve: ")
    assert "tokenizer.json" in failed.stderr
