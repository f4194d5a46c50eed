"""A service of several worker processes: workers are replaced, swap versions, share metrics and stop together."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, metric, serving, until
from tests.service.stores import TOP_K, Activation, loading

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


def test_workers_swap_versions_under_load_and_answer_all_requests_before_they_stop_on_sigterm(store: Path) -> None:
    with serving(store, *POLLS) as server, loading(server.url) as load:
        activation = Activation(Store(store), None)
        for version in ("v5", "v3", "v5"):
            record = activation.activate(version)
            assert [report.version for report in activation.wait(record, PATIENCE_SECONDS, 2)] == [version] * 2
        load.wait_for(50, of="v5")
        swapped = server.wait_for("bundle_swapped", count=6) and server.events("bundle_swapped")
        workers = two_workers(store)
        assert {event["worker"] for event in swapped} == workers  # the log names the process
        server.process.send_signal(signal.SIGTERM)
        load.stop()
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert load.wrong == []
    assert set(load.answers) == set(TOP_K)


def test_workers_that_are_killed_or_suspended_are_replaced_and_none_outlives_the_supervisor(store: Path) -> None:
    answered = 'recollect_requests_total{path="/predict",status="200"}'
    with serving(store, *POLLS) as server:

        def ask(count: int) -> None:
            """Each request has a new connection, so that both workers receive requests."""
            for number in range(count):
                httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"}).raise_for_status()

        ask(20)
        for number in (signal.SIGKILL, signal.SIGSTOP):
            gone = min(two_workers(store))
            os.kill(gone, number)
            server.wait_for(f"Child process [{gone}] died")
            ask(10)  # the worker was idle, so no connection breaks
            workers = two_workers(store, gone)
        with httpx.Client(base_url=server.url) as client:  # the sums over all workers, also the killed one
            assert metric(client, answered) == 40
            assert metric(client, 'recollect_bundle_info{version="v3"}') == metric(client, "recollect_ready") == 2
        server.process.kill()
        until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_signal_to_supervisor_and_workers_at_once_interrupts_no_answer(store: Path, stop: signal.Signals) -> None:
    with serving(store, *POLLS) as server, loading(server.url) as load:
        workers = two_workers(store)
        load.wait_for(50)
        for number in (signal.SIGUSR1, signal.SIGUSR2, stop):
            for process in (*workers, server.process.pid):
                os.kill(process, number)
        load.stop()
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert len(server.events("stopped")) == 2
    assert load.wrong == []
