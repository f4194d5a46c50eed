"""How a service stops: after a drain, and at once on a second signal."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from recollect.service.versions.reports import reports_of
from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, before_each_batch, head_of_post, serving, until

# This wait for load balancers never ends, so a drain ends only if it skips the wait.
NEVER_QUIET = "from recollect.service.process import drain\ndrain._QUIET_SECONDS = 3600.0\n"
LONG_DRAIN = ("--drain-seconds", "3600")
# On a busy machine, the steps after the deadline of a drain can take long.
LATE_EXIT = "from recollect.service.process import drain\ndrain._EXIT_SECONDS = 60.0\n"


def test_clients_that_do_not_send_their_requests_do_not_delay_the_end(store: Path) -> None:
    with serving(store, *LONG_DRAIN) as server, server.connect() as silent, server.connect() as slow:
        httpx.get(f"{server.url}/health/ready").raise_for_status()  # the connections before it are accepted now
        slow.sendall(b"GET /health/")
        server.process.send_signal(signal.SIGTERM)
        assert silent.recv(1) == slow.recv(1) == b""
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert '"error"' not in server.log()


# Program of a server whose answer to the query "slow" takes longer than the test.
SLOW = NEVER_QUIET + before_each_batch("""
if "slow" in queries:
    Path(os.environ["STARTED"]).touch()
    time.sleep(3600)
""")


# Program of a server whose answer to the query "blocks" has blocks without an end.
BLOCKS = LATE_EXIT + before_each_batch("""
while "blocks" in queries:
    Path(os.environ["STARTED"]).touch()
    rest[0]()  # the checkpoint
    time.sleep(0.01)
""")


def test_draining_service_is_not_ready_and_a_second_sigterm_ends_it_without_an_error(
    store: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with serving(store, *LONG_DRAIN, prelude=SLOW, STARTED=str(started)) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(server.ask, "slow")
        until(started.exists)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining")
        answers = [httpx.get(f"{server.url}/health/ready") for _ in range(30)]
        assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(503, "draining")}
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert "Traceback" not in server.log()
        assert '"error"' not in server.log()
        with pytest.raises(httpx.RemoteProtocolError):
            answer.result()


def test_signals_of_a_closed_terminal_and_of_log_rotation_break_no_request(store: Path, tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    waits = before_each_batch("""
while "waits" in queries and not Path(os.environ["GO"]).exists():
    Path(os.environ["STARTED"]).touch()
    time.sleep(0.01)
""")
    variables = {"STARTED": str(started), "GO": str(go)}
    with serving(store, *LONG_DRAIN, prelude=waits, **variables) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(server.ask, "waits")
        until(started.exists)
        server.process.send_signal(signal.SIGUSR1)
        server.process.send_signal(signal.SIGUSR2)
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("draining")
        go.touch()
        assert answer.result().status_code == 200
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0


def is_draining(response: httpx.Response) -> bool:
    """Whether the response is the problem of a stopping service, and closes the connection."""
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.headers["retry-after"], response.headers["connection"]) == ("1", "close")
    return (response.status_code, response.json()["code"]) == (503, "draining")


def test_request_that_outlasts_the_drain_gets_503_and_the_service_exits_with_0(store: Path, tmp_path: Path) -> None:
    started, flags, prelude = tmp_path / "started", ("--drain-seconds", "1"), SLOW + "drain._EXIT_SECONDS = 3.0\n"
    with serving(store, *flags, prelude=prelude, STARTED=str(started)) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(server.ask, "slow")
        until(started.exists)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert is_draining(answer.result())
        assert server.events("requests_aborted")[0]["requests"] == 1
        assert server.events("stopped_during_work")
        assert "Traceback" not in server.log()
    assert reports_of(Store(store), None).read() == []


def test_client_that_still_sends_its_request_at_the_end_of_the_drain_gets_503(store: Path) -> None:
    with serving(store, "--drain-seconds", "1", prelude=LATE_EXIT) as server:
        with server.connect() as client:
            client.sendall(head_of_post(99) + b"{")
            while server.events("draining") == []:
                httpx.get(f"{server.url}/health/ready")  # answered only after the request above has been accepted
                server.process.send_signal(signal.SIGTERM)
                server.wait_for("draining")
            answer = b""
            while received := client.recv(65_536):
                answer += received
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"draining"' in answer
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert "Traceback" not in server.log()


def test_running_batch_stops_at_the_end_of_the_drain(store: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with serving(store, "--drain-seconds", "0.5", prelude=BLOCKS, STARTED=str(started)) as server:
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(server.ask, "blocks")
            until(started.exists)
            server.process.send_signal(signal.SIGTERM)
            assert is_draining(answer.result())
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert server.events("stopped")
        assert not server.events("stopped_during_work")
