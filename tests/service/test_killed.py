"""A service that is killed in any state starts again and serves the desired version; no other replica is disturbed."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from recollect.core.bundle.integrity import describe_files
from recollect.service.versions.reports import Report, reports_of
from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, Server, head_of_post, serving, until
from tests.service.stores import add_version, flip_bit, with_changed_files
from tests.service.test_drain import LONG_DRAIN
from tests.store.servers import WebServer


def test_service_that_is_killed_in_any_state_serves_the_desired_version_after_its_next_start(
    store: Path, tmp_path: Path
) -> None:
    published, cache = Store(store), tmp_path / "cache"
    flip_bit(store / "bundles" / add_version(store, "v5", "v7", with_changed_files) / "label_keys.faiss")
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(WebServer(store).running())
        other = stack.enter_context(serving(web.url, "--bundle-cache", cache, "--poll-seconds", "600"))
        reports = reports_of(Store(web.url, None, cache), None)

        def wait_for(server: Server, condition: Callable[[Report], bool]) -> None:
            """Wait until the report of a service fulfils a condition."""
            process = f"-{server.process.pid}-"
            until(lambda: any(process in report.replica and condition(report) for report in reports.read()))

        @contextlib.contextmanager
        def killed(version: str) -> Iterator[Server]:
            """A start of the service, which serves a version and is killed at the end, while another one answers."""
            with serving(web.url, "--bundle-cache", cache, "--poll-seconds", "0.05", *LONG_DRAIN) as server:
                try:
                    wait_for(server, lambda report: report.generation is not None)
                    assert server.version() == version
                    yield server
                finally:
                    server.kill()
                    answer = other.ask("bread")
                    assert (answer.status_code, answer.json().get("version")) == (200, "v3")

        with killed("v3"):
            pass

        with killed("v3"):
            web.paused_file = "instance_keys.faiss"
            published.activate("v5")
            assert web.paused.wait(PATIENCE_SECONDS)  # half of the file has been copied
        web.paused_file = ""
        web.resumed.set()

        with killed("v5") as server:
            published.activate("v7")
            wait_for(server, lambda report: report.refused is not None)
        published.rollback()

        with killed("v5") as server, server.connect() as connected:
            connected.sendall(head_of_post(99) + b"{")  # the drain waits for the other half
            httpx.get(f"{server.url}/health/live").raise_for_status()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("draining")
            server.kill()  # before the connection ends, and with it the drain

        with killed("v5"):
            (folder,) = cache.iterdir()
            assert sorted(path.name for path in (folder / "bundles").iterdir()) == ["v3", "v5"]
            for bundle in (folder / "bundles").iterdir():
                manifest = json.loads((bundle / "manifest.json").read_bytes())
                described = {name: info.model_dump() for name, info in describe_files(bundle).items()}
                assert described == manifest["files"]
        assert "warning" not in other.log()
        assert "error" not in other.log()
