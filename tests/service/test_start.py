"""The time before the first version is open: the service answers, but is not ready."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from recollect.service.store.store import Store
from recollect.service.versions.replicas import replicas_of, reports
from tests.service.http_helpers import PATIENCE_SECONDS, flip_bit, serving
from tests.service.redis_server import until

# Program of a server that opens its first version when a file exists, and that writes its port to a file before.
WAITING = """
import os, time
from pathlib import Path
from recollect.service import addresses
from recollect.service.process import server
work = server._work
def work_when_allowed(*arguments, **named):
    from recollect.service.process import worker
    from recollect.service.versions.opening import Opener
    worker._WITHDRAW_SECONDS = 60.0
    open_version = Opener.open
    def open_when_allowed(self, *rest):
        Path(os.environ["STARTED"]).touch()
        while not Path(os.environ["GO"]).exists():
            time.sleep(0.01)
        return open_version(self, *rest)
    Opener.open = open_when_allowed
    work(*arguments, **named)
server._work = work_when_allowed
start_listening = addresses.start_listening
def start_and_write_port(bound):
    start_listening(bound)
    path = Path(os.environ["PORT"])
    path.with_suffix(".new").write_text(str(bound.getsockname()[1]))
    path.with_suffix(".new").rename(path)
addresses.start_listening = start_and_write_port
"""


class Opening:
    """A server that is opening its first version."""

    def __init__(self, store: Path, folder: Path, *flags: str, prelude: str = WAITING) -> None:
        self._files = {name: folder / name.lower() for name in ("STARTED", "GO", "PORT")}
        program = f"{prelude}\nimport sys, recollect\nsys.exit(recollect.main())"
        self.log = folder / "log"
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    program,
                    "serve",
                    "--store",
                    str(store),
                    "--port",
                    "0",
                    "--threads",
                    "1",
                    *flags,
                ],
                stderr=stderr,
                env={**os.environ, **{name: str(path) for name, path in self._files.items()}},
            )

    @property
    def url(self) -> str:
        self._wait_for("PORT")
        return f"http://127.0.0.1:{self._files['PORT'].read_text()}"

    def wait_until_opening(self) -> None:
        self._wait_for("STARTED")

    def open(self) -> None:
        self._files["GO"].touch()

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._files[name].exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while httpx.get(f"{self.url}/health/ready").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def opening(store: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opening]:
    with started(store, tmp_path, *getattr(request, "param", ())) as opening:
        yield opening


@contextlib.contextmanager
def started(store: Path, folder: Path, *flags: str) -> Iterator[Opening]:
    opening = Opening(store, folder, *flags)
    try:
        yield opening
    finally:
        opening.process.kill()
        opening.process.wait()


@pytest.mark.parametrize("opening", [(), ("--workers", "2")], ids=["1 process", "2 workers"], indirect=True)
def test_service_answers_that_it_is_not_ready_while_its_first_version_opens(opening: Opening) -> None:
    for path, status in (("/health/live", 200), ("/health/ready", 503), ("/version", 503), ("/labels/x", 503)):
        answer = httpx.get(f"{opening.url}{path}")
        assert answer.status_code == status
        if status == 503:
            assert answer.json()["code"] == "not_ready"
            assert int(answer.headers["retry-after"]) >= 1
    assert httpx.post(f"{opening.url}/predict", json={"query": "bread"}).json()["code"] == "not_ready"
    assert "recollect_ready 0.0" in httpx.get(f"{opening.url}/metrics").text
    assert opening.log.read_text() == ""
    opening.open()
    opening.until_ready()
    assert httpx.post(f"{opening.url}/predict", json={"query": "bread"}).status_code == 200


@pytest.mark.parametrize("opening", [(), ("--workers", "2")], ids=["1 process", "2 workers"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_stops_with_status_0_while_its_first_version_opens_and_removes_its_report(
    opening: Opening, store: Path, number: int
) -> None:
    opening.wait_until_opening()
    assert httpx.get(f"{opening.url}/health/live").status_code == 200
    replicas = replicas_of(Store(store), None)
    assert [report.state for report in until(lambda: reports(replicas))] == ["opening"]
    opening.process.send_signal(number)
    assert opening.process.wait(timeout=PATIENCE_SECONDS) == 0
    assert replicas.seen() == []
    assert '"error"' not in opening.log.read_text()
    assert "Traceback" not in opening.log.read_text()


@pytest.mark.parametrize("opening", [(), ("--workers", "2")], ids=["1 process", "2 workers"], indirect=True)
def test_service_that_cannot_open_its_first_version_ends_with_one_message(opening: Opening, store: Path) -> None:
    with socket.create_connection(("127.0.0.1", int(opening.url.rpartition(":")[2]))) as idle:
        flip_bit(store / "bundles" / "v3" / "label_keys.faiss")
        opening.open()
        assert opening.process.wait(timeout=PATIENCE_SECONDS) == 2
        idle.settimeout(PATIENCE_SECONDS)
        assert idle.recv(1) == b""
    (line,) = opening.log.read_text().splitlines()
    assert line.startswith("recollect serve: ")
    assert "label_keys.faiss: expected SHA-256" in line
    assert replicas_of(Store(store), None).seen() == []


def test_connections_are_refused_before_the_service_can_answer(store: Path, tmp_path: Path) -> None:
    imports = "import os, time\nfrom pathlib import Path\nclass Wait:\n    def find_spec(self, name, *rest):\n"
    imports += (
        "        if name == 'recollect.service.process.worker':\n            Path(os.environ['STARTED']).touch()\n"
    )
    imports += "            while not Path(os.environ['GO']).exists():\n                time.sleep(0.01)\n"
    imports += "import sys\nsys.meta_path.insert(0, Wait())\n"
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    opening = Opening(store, tmp_path, "--port", str(port), prelude=imports)
    try:
        opening.wait_until_opening()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/health/live")
    finally:
        opening.process.kill()
        opening.process.wait()


def test_restarted_worker_accepts_no_connections_before_its_version_is_open(store: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / name.lower() for name in ("STARTED", "GO", "PORT")}
    files["GO"].touch()
    variables = {name: str(path) for name, path in files.items()}
    with serving(store, "--workers", "2", "--poll-seconds", "0.05", prelude=WAITING, **variables) as server:
        files["GO"].unlink()
        files["STARTED"].unlink()
        (killed, *_) = children(server.process.pid)
        os.kill(killed, signal.SIGKILL)
        server.wait_for("worker_died")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not files["STARTED"].exists():  # the new worker is opening the version
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for number in range(20):
            answer = httpx.post(f"{server.url}/predict", json={"query": f"bread {number}"})
            assert answer.status_code == 200
        files["GO"].touch()


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_log_names_the_address_when_the_service_is_ready(store: Path) -> None:
    with serving(store, "--admin-port", "0") as server:
        (event,) = server.events("serving")
        assert event["url"].startswith("http://127.0.0.1:")
        assert event["admin"].startswith("http://127.0.0.1:")
        assert httpx.get(f"{event['admin']}/admin/versions").json()["current"] == "v3"
