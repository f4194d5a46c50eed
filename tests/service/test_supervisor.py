"""Several processes that serve as one: a dead one is replaced, all swap, all are counted, all stop."""

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

from service.store.store import Store
from service.versions.activation import Activation
from tests.service.http_helpers import PATIENCE_SECONDS, Server, serving
from tests.service.light_stores import TOP_K
from tests.service.test_live import Load

POLLS = ("--workers", "2", "--poll-seconds", "0.05")


def processes(store: Path) -> set[int]:
    return {int(report.replica.split("-")[-2]) for report in Activation(Store(store), None).replicas.reports()}


def until_two_tell(store: Path, killed: int = 0) -> set[int]:
    """Both workers' processes, once both tell what they serve, neither of which is the killed one."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found := processes(store)) < 2 or killed in found:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def counted(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_all_workers_swap_and_no_answer_mixes_versions(store: Path) -> None:
    with serving(store, *POLLS) as server, Load(server.url) as load:
        activation = Activation(Store(store), None)
        for version in ("v5", "v3", "v5"):
            activation.activate(version)
            assert {report.version for report in activation.wait(version, PATIENCE_SECONDS)} == {version}
        until = time.monotonic() + PATIENCE_SECONDS
        while load.versions[-1] != "v5":
            assert time.monotonic() < until
    assert load.wrong == []
    assert set(load.versions) == set(TOP_K)


def test_metrics_add_up_over_workers(store: Path) -> None:
    with serving(store, *POLLS) as server:
        for number in range(20):  # each over a connection of its own, so that both workers get some
            httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"}).raise_for_status()
        assert counted(server, 'recollect_requests_total{path="/predict",status="200"}') == 20
        assert counted(server, "recollect_ready") == 2
        assert counted(server, 'recollect_bundle_info{version="v3"}') == 2


def test_a_killed_worker_is_replaced_and_the_others_answer_meanwhile(store: Path) -> None:
    with serving(store, *POLLS) as server:
        killed = min(until_two_tell(store))
        os.kill(killed, signal.SIGKILL)
        assert server.wait_for("worker_died")["status"] == -signal.SIGKILL
        answered = 0
        for number in range(10):  # a connection that the dead one had taken breaks; there is none: it was idle
            answered += httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"}).status_code == 200
        assert answered == 10
        until_two_tell(store, killed)
        assert counted(server, "recollect_ready") == 2


def test_sigterm_stops_all_workers_after_their_last_answer(store: Path) -> None:
    with serving(store, *POLLS) as server, Load(server.url) as load:
        workers = until_two_tell(store)
        while len(load.versions) < 50:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        load.stop()
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)
    assert load.wrong == []  # what had been asked was answered


SLOW = """
import os, time
from pathlib import Path
from service.process import server
work = server._work
def work_slowly(*arguments):
    from service.predictor.predictor import Predictor
    answer = Predictor.predict_together
    def predict_together(self, requests):
        if any(query == "slow" for queries, _ in requests for query in queries):
            Path(os.environ["ASKED"]).touch()
            while not Path(os.environ["GO"]).exists():
                time.sleep(0.01)
        return answer(self, requests)
    Predictor.predict_together = predict_together
    work(*arguments)
server._work = work_slowly
"""


def test_a_signal_to_all_processes_interrupts_no_answer(store: Path, tmp_path: Path) -> None:
    asked, go = tmp_path / "asked", tmp_path / "go"
    with serving(store, *POLLS, prelude=SLOW, ASKED=str(asked), GO=str(go)) as server, ThreadPoolExecutor() as pool:
        workers = until_two_tell(store)
        body = {"query": "slow"}
        answer = pool.submit(httpx.post, f"{server.url}/predict", json=body, timeout=PATIENCE_SECONDS)
        try:
            while not asked.exists():
                time.sleep(0.01)
            for process in (*workers, server.process.pid):
                os.kill(process, signal.SIGTERM)
            server.wait_for("draining", count=2)
            for _ in range(30):  # and the watcher's own signal has reached the one that is at work
                assert httpx.get(f"{server.url}/health/ready").status_code == 503
        finally:
            go.touch()
        assert answer.result().status_code == 200
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def test_workers_end_with_their_watcher(store: Path) -> None:
    with serving(store, *POLLS) as server:
        workers = until_two_tell(store)
        server.process.kill()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                while True:
                    os.kill(worker, 0)
                    assert time.monotonic() < deadline
                    time.sleep(0.02)


def test_a_store_that_cannot_be_served_is_told_once(tmp_path: Path, store: Path, road: Any) -> None:
    (store / "bundles" / "v3" / "tokenizer.json").write_bytes(b"{}")
    command = [sys.executable, "-m", "recollect", "serve", "--store", str(store), "--port", "0", "--workers", "3"]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1, failed.stderr
    assert failed.stderr.startswith("recollect serve: ")
    assert "tokenizer.json" in failed.stderr
