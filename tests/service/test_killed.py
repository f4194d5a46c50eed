"""A service that is killed in any state starts again and serves the desired version; no other replica is disturbed."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from recollect.core.bundle.integrity import describe_files
from recollect.service.versions.reports import Report, reports_of
from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, Server, serving, until
from tests.service.stores import add_version, flip_bit, with_changed_files
from tests.service.test_drain import LONG_DRAIN
from tests.store.servers import WebServer

HALF_REQUEST = (
    b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
)


def connection_to(server: Server) -> socket.socket:
    url = urlsplit(server.url)
    return socket.create_connection((url.hostname, url.port), timeout=PATIENCE_SECONDS)


class Service:
    """A `recollect serve` that copies bundles from a web server to a cache."""

    def __init__(self, web: WebServer, cache: Path) -> None:
        self._web, self._cache = web, cache
        self._reports = reports_of(Store(web.url, None, cache), None)

    @contextlib.contextmanager
    def killed(self, version: str) -> Iterator[Server]:
        """A start of the service, which serves a version and is killed at the end."""
        flags = ("--bundle-cache", str(self._cache), "--poll-seconds", "0.05")
        with serving(self._web.url, *flags, *LONG_DRAIN) as server:
            try:
                self.wait_for(server, lambda report: report.generation is not None)
                assert server.version() == version
                yield server
            finally:
                server.kill()

    def wait_for(self, server: Server, condition: Callable[[Report], bool]) -> None:
        """Wait until the report of the service fulfils a condition."""
        until(lambda: any(condition(report) for report in self._reports_of(server)))

    def _reports_of(self, server: Server) -> list[Report]:
        reports = self._reports.read()
        return [report for report in reports if int(report.replica.split("-")[-2]) == server.process.pid]


def test_service_that_is_killed_in_any_state_serves_the_desired_version_after_its_next_start(
    store: Path, tmp_path: Path
) -> None:
    published, cache = Store(store), tmp_path / "cache"
    flip_bit(store / "bundles" / add_version(store, "v5", "v7", with_changed_files) / "label_keys.faiss")
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(WebServer(store).running())
        other = stack.enter_context(serving(web.url, "--bundle-cache", str(cache), "--poll-seconds", "600"))
        service = Service(web, cache)

        def other_answers() -> bool:
            answer = other.ask("bread")
            return (answer.status_code, answer.json().get("version")) == (200, "v3")

        with service.killed("v3"):
            assert other_answers()
        assert other_answers()

        with service.killed("v3"):
            web.paused_file = "instance_keys.faiss"
            published.activate("v5")
            assert web.paused.wait(PATIENCE_SECONDS)  # half of the file has been copied
        assert other_answers()
        web.paused_file = ""
        web.resumed.set()

        with service.killed("v5") as server:
            published.activate("v7")
            service.wait_for(server, lambda report: report.refused is not None)
        assert other_answers()
        published.rollback()

        with service.killed("v5") as server, connection_to(server) as connected:
            connected.sendall(HALF_REQUEST)  # the drain waits for the other half
            httpx.get(f"{server.url}/health/live").raise_for_status()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("draining")
        assert other_answers()

        with service.killed("v5"):
            (folder,) = cache.iterdir()
            assert sorted(path.name for path in (folder / "bundles").iterdir()) == ["v3", "v5"]
            for bundle in (folder / "bundles").iterdir():
                manifest = json.loads((bundle / "manifest.json").read_bytes())
                described = {name: info.model_dump() for name, info in describe_files(bundle).items()}
                assert described == manifest["files"]
        assert "warning" not in other.log()
        assert "error" not in other.log()
