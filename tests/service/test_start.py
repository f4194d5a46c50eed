"""The time before the first version is open: no connections are accepted, and the service can be stopped."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from recollect.service.versions.reports import reports_of
from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, free_port, run, serving, started, until
from tests.service.stores import flip_bit
from tests.store.servers import WebServer

REPOSITORY = Path(__file__).parents[2]
WORKERS = pytest.mark.parametrize("workers", [1, 2], ids=["1 process", "2 workers"])


@contextlib.contextmanager
def opening(store: Path, folder: Path, *flags: object) -> Iterator[tuple[WebServer, subprocess.Popen[bytes]]]:
    """A server that copies its first version from a web server, which sends half of a file until it may resume."""
    with WebServer(store).running() as web:
        web.paused_file = "label_keys.faiss"
        cache = {"RECOLLECT_BUNDLE_CACHE": str(folder / "cache")}
        flags = ("--store", web.url, "--threads", "1", *flags)
        with started("serve", *flags, log=folder / "log", **cache) as process:
            assert web.paused.wait(PATIENCE_SECONDS), (folder / "log").read_text()
            yield web, process
            web.resumed.set()
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)


@WORKERS
def test_connections_are_refused_until_the_first_version_is_open(store: Path, tmp_path: Path, workers: int) -> None:
    port = free_port()
    with opening(store, tmp_path, "--port", port, "--workers", workers) as (web, _):

        def is_ready() -> bool:
            """Every answer on an accepted connection is 200."""
            with contextlib.suppress(httpx.ConnectError):
                httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=PATIENCE_SECONDS).raise_for_status()
                return True
            return False

        assert not is_ready()
        web.paused_file = ""
        web.resumed.set()
        until(is_ready)


@pytest.mark.parametrize(("workers", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_service_stops_with_status_0_while_its_first_version_opens_and_removes_its_report(
    store: Path, tmp_path: Path, number: int, workers: int
) -> None:
    with opening(store, tmp_path, "--port", 0, "--workers", workers) as (web, process):
        reports = reports_of(Store(web.url, None, tmp_path / "cache"), None)
        assert {report.version for report in until(reports.read)} == {None}
        process.send_signal(number)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
        assert reports.read() == []
        assert '"error"' not in (tmp_path / "log").read_text()
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_service_on_an_ipv6_address_passes_its_health_check(store: Path) -> None:
    with serving(store, "--host", "[::1]", "--keep-alive-seconds", "1") as server:
        assert server.url.startswith("http://[::1]:")
        port = server.url.rpartition(":")[2]
        for host in ("::", "::1", "[::1]"):
            variables = {"RECOLLECT_HOST": host, "RECOLLECT_PORT": port}
            subprocess.run([sys.executable, "deploy/check_ready.py"], cwd=REPOSITORY, env=variables, check=True)
        with socket.create_connection(("::1", int(port)), PATIENCE_SECONDS) as connection:
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n")
            while connection.recv(65_536):  # ends when the service closes the connection
                pass
        assert httpx.get(f"{server.url}/health/ready/").status_code == 404  # no redirect, which would lead to http


@WORKERS
def test_service_that_cannot_open_its_first_version_ends_with_one_message(store: Path, workers: int) -> None:
    flip_bit(store / "bundles" / "v3" / "label_keys.faiss")
    failed = run("serve", "--store", store, "--port", 0, "--workers", workers, status=2)
    (line,) = failed.stderr.splitlines()
    assert line.startswith("recollect serve: ")
    assert "label_keys.faiss: expected SHA-256" in line
    assert reports_of(Store(store), None).read() == []
