"""The model manager: swaps under load, broken versions, shutdown, and errors of a running server."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, Server, before_each_batch, serving, until
from tests.service.stores import TOP_K, add_version, answers_with, until_serves

POLL = ("--poll-seconds", "0.05")


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    with serving(store, *POLL) as server:
        yield server


class Load:
    """Threads that send requests continuously; `wrong` collects every answer that does not fit the version it names."""

    def __init__(self, url: str, threads: int = 4) -> None:
        self._url, self._stop = url, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(threads)]
        self.wrong: list[str] = []
        self.versions: list[str] = []

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=PATIENCE_SECONDS) as client:
            while not self._stop.is_set():
                try:
                    self._check(client.post("/predict", json={"query": "tax on bread"}))
                except Exception as error:
                    self.wrong.append(repr(error))

    def _check(self, answer: httpx.Response) -> None:
        body = answer.json()
        matches_version = (answer.status_code, len(body["labels"])) == (200, TOP_K[body["version"]])
        if not matches_version or answer.headers["x-index-version"] != body["version"]:
            self.wrong.append(f"{answer.status_code} {answer.headers} {answer.text}")
        self.versions.append(body["version"])

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Finish the requests in progress, and send no more requests."""
        self._stop.set()

    def __exit__(self, *_: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()


def test_only_the_current_and_the_previous_version_stay_mapped_even_if_no_requests_arrive(
    store: Path, server: Server
) -> None:
    add_version(store, "v3", "v7", answers_with(7))

    def mapped() -> set[str]:
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        return set(re.findall(r"/bundles/(v\d)/", maps))

    server.ask("bread").raise_for_status()
    for version in ("v7", "v3", "v7", "v5", "v3"):
        Store(store).activate(version)
        until_serves(server.client, version)
    until(lambda: mapped() == {"v3", "v5"})


ERROR = before_each_batch("""
if any(query.startswith("zyzzyva") for query in queries):
    raise RuntimeError("deliberate error")
""")


def test_internal_error_is_logged_once_and_the_log_does_not_contain_the_query(store: Path) -> None:
    with serving(store, prelude=ERROR) as server:
        query = {"query": "zyzzyva, in private"}
        failed = httpx.post(f"{server.url}/predict", json=query, headers={"X-Request-Id": "r-1"})
        assert (failed.status_code, failed.json()["code"]) == (500, "internal")
        assert "deliberate error" not in failed.text
        assert (failed.headers["x-request-id"], failed.headers["x-index-version"]) == ("r-1", "v3")
        event = server.wait_for("request_failed")
        assert (event["request_id"], event["path"]) == ("r-1", "/predict")
        assert "deliberate error" in event["exception"]
        assert httpx.post(f"{server.url}/predict", json={"query": "bread"}).status_code == 200
        assert "zyzzyva" not in server.log()
        assert server.log().count("Traceback") == 1


# Tests of a full queue, and of clients that disconnect.

# Program of a server whose batches wait until a file exists, and which writes the queries of each batch to a file.
WAITING = before_each_batch("""
if threading.current_thread().name.startswith("predict-"):  # otherwise, a query checks or warms up the version
    with Path(os.environ["QUERIES"]).open("a") as file:
        file.writelines(query + "\\n" for query in queries)
    while not Path(os.environ["GO"]).exists():
        time.sleep(0.01)
""")


@pytest.fixture
def waiting(store: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that computes nothing until the file `go` exists, and writes its queries to the file `queries`."""
    variables = {"QUERIES": str(tmp_path / "queries"), "GO": str(tmp_path / "go")}
    (tmp_path / "queries").touch()
    with serving(store, "--max-queue", "2", prelude=WAITING, **variables) as server:
        yield server


def test_query_is_not_computed_if_its_client_has_disconnected(waiting: Server, tmp_path: Path) -> None:
    host, port = waiting.url.removeprefix("http://").split(":")
    client = waiting.client
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/predict", json={"query": "first"})
        until(lambda: "first" in (tmp_path / "queries").read_text())
        with socket.create_connection((host, int(port))) as leaving:
            body = b'{"query": "leaving"}'
            head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            leaving.sendall(b"POST /predict HTTP/1.1\r\n" + head.encode() + body)
            until(lambda: "recollect_queue_queries 1.0" in client.get("/metrics").text)
        until(lambda: 'recollect_dropped_total{why="gone"} 1.0' in client.get("/metrics").text)
        (tmp_path / "go").touch()
        assert first.result().status_code == 200
        assert client.post("/predict", json={"query": "last"}).status_code == 200
    assert (tmp_path / "queries").read_text().split() == ["first", "last"]
