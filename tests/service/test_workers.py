"""A service of several worker processes: workers are replaced, swap versions, share metrics and stop together."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, Server, serving, until
from tests.service.stores import TOP_K, Activation
from tests.service.test_model_manager import Load

POLLS = ("--workers", "2", "--poll-seconds", "0.05")


def serving_processes(store: Path) -> set[int]:
    found = Activation(Store(store), None).reports.read()
    return {int(report.replica.split("-")[-2]) for report in found if report.generation is not None}


def two_workers(store: Path, killed: int = 0) -> set[int]:
    """Wait until two workers report the version that they serve; return their process ids.

    `killed` must not be one of them.
    """

    def found() -> set[int] | None:
        processes = serving_processes(store)
        return processes if len(processes) > 1 and killed not in processes else None

    workers: set[int] = until(found)
    return workers


def metric_sum(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_all_workers_swap_versions_and_no_answer_mixes_versions(store: Path) -> None:
    with serving(store, *POLLS) as server, Load(server.url) as load:
        activation = Activation(Store(store), None)
        for version in ("v5", "v3", "v5"):
            record = activation.activate(version)
            assert [report.version for report in activation.wait(record, PATIENCE_SECONDS, 2)] == [version] * 2
        until(lambda: load.versions[-1] == "v5")
        swapped = server.wait_for("bundle_swapped", count=6) and server.events("bundle_swapped")
        assert {event["worker"] for event in swapped} == two_workers(store)  # the log names the process
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
        for number in range(20):
            httpx.post(f"{server.url}/predict", json={"query": f"oven {number}"}).raise_for_status()
        killed = min(two_workers(store))
        os.kill(killed, signal.SIGKILL)
        server.wait_for(f"Child process [{killed}] died")
        answered = 0
        for number in range(10):  # the killed worker was idle, so no connection breaks
            answered += httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"}).status_code == 200
        assert answered == 10
        two_workers(store, killed)
        for _ in range(2):  # the counts of the killed worker stay
            assert metric_sum(server, 'recollect_requests_total{path="/predict",status="200"}') == 30
        assert metric_sum(server, "recollect_ready") == 2


def test_suspended_worker_is_killed_and_replaced(store: Path) -> None:
    with serving(store, *POLLS) as server:
        stopped = min(two_workers(store))
        os.kill(stopped, signal.SIGSTOP)
        server.wait_for(f"Child process [{stopped}] died")
        two_workers(store, stopped)
        for number in range(10):
            httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"}).raise_for_status()


def test_workers_answer_all_requests_before_they_stop_on_sigterm(store: Path) -> None:
    with serving(store, *POLLS) as server, Load(server.url) as load:
        workers = two_workers(store)
        until(lambda: len(load.versions) >= 50)
        server.process.send_signal(signal.SIGTERM)
        load.stop()
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)
    assert load.wrong == []  # every request was answered correctly


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_signal_to_supervisor_and_workers_at_once_interrupts_no_answer(store: Path, stop: signal.Signals) -> None:
    with serving(store, *POLLS) as server, Load(server.url) as load:
        workers = two_workers(store)
        until(lambda: len(load.versions) >= 50)
        for number in (signal.SIGUSR1, signal.SIGUSR2, stop):
            for process in (*workers, server.process.pid):
                os.kill(process, number)
        load.stop()
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert len(server.events("stopped")) == 2
    assert load.wrong == []


def test_all_workers_stop_when_the_supervisor_is_killed(store: Path) -> None:
    with serving(store, *POLLS) as server:
        workers = two_workers(store)
        server.process.kill()
        until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
