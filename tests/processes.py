"""Runs Recollect as a user does: verbs and servers in processes of their own."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

import recollect
from tests import forked

# No test asserts a time. They wait at most this long, so that a hanging process fails its test.
PATIENCE_SECONDS = 240


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process: one thread for each library, no network, and no settings of the user."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RECOLLECT_")}
    kept = {name: os.environ[name] for name in ("RECOLLECT_BUNDLE_CACHE",) if name in os.environ}
    return own | kept | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "recollect", *map(str, arguments)]


def run(*arguments: object, status: int = 0, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a verb. It must end with a status, and never with a traceback."""
    done = forked.run(
        command(*arguments),
        input=stdin,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        **options,
    )
    assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def call(*arguments: object) -> None:
    """Run a verb in this process. It must succeed."""
    assert recollect.main([*map(str, arguments)]) == 0


def run_json(*arguments: object, **options: Any) -> Any:
    return json.loads(run(*arguments, "--json", **options).stdout)


@contextlib.contextmanager
def started(*arguments: object, log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A verb that runs in the background; it is killed at the end if it still runs. Its output goes to a file."""
    with log.open("wb") as output:
        process = forked.Popen(
            command(*arguments), stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment(**variables)
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], Any], reason: Callable[[], str] = lambda: "") -> Any:
    """Wait until a condition is true, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, reason()
        time.sleep(0.02)
    return found


class Server:
    """A running `recollect serve`: its address, its log, and a client. With `key`, the client sends this API key."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, key: str) -> None:
        self.process, self._log = process, log
        serving = self.wait_for("serving")
        self.url: str = serving["url"]
        self.wait_for("serving", count=serving["workers"])
        headers = {"X-API-Key": key} if key else {}
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS, headers=headers)

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log events with this name; fails if a log line is not JSON."""
        whole = self.log().rpartition("\n")[0]
        return [event for event in map(json.loads, whole.splitlines()) if event["event"] == name]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th log event with this name and return it."""

        def enough() -> list[dict[str, Any]] | None:
            found = self.events(event)
            assert len(found) >= count or self.process.poll() is None, self.log()
            return found[:count] if len(found) >= count else None

        found: list[dict[str, Any]] = until(enough, lambda: f"no {event}:\n{self.log()}")
        return found[-1]

    def connect(self) -> socket.socket:
        url = httpx.URL(self.url)
        return socket.create_connection((url.host, url.port), timeout=PATIENCE_SECONDS)

    def ask(self, query: str, **options: Any) -> httpx.Response:
        return self.client.post("/predict", json={"query": query, **options})

    def uids(self, query: str, **options: Any) -> list[str]:
        response = self.ask(query, **options)
        assert response.status_code == 200, response.text
        return [label["uid"] for label in response.json()["labels"]]

    def version(self) -> str:
        return str(self.client.get("/version").json()["version"])

    def put_label(self, uid: str, text: str) -> httpx.Response:
        return self.client.post("/memory/labels", json={"labels": [{"uid": uid, "text": text}]})

    def has_label(self, uid: str) -> bool:
        return self.client.get(f"/labels/{uid}").status_code == 200

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL


def head_of_post(length: int) -> bytes:
    """The head of a request to `/predict` whose body has so many bytes."""
    lines = ("POST /predict HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def is_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that a response is this problem document, and return it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem: dict[str, Any] = response.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, "about:blank"), problem
    assert problem["title"]
    assert problem["detail"]
    assert response.headers["x-request-id"]
    assert ("retry-after" in response.headers) == (status in (429, 503))
    return problem


def metric(client: httpx.Client, name: str) -> float:
    """The sum of the metrics whose name and labels begin with a text."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def before_each_batch(code: str) -> str:
    """A program for a server, which runs `code` before each batch. The code may use the list `queries` of the batch."""
    return f"""
import os, threading, time
from pathlib import Path
from recollect.core.predictor import Predictor
answer = Predictor.predict_together
def predict_together(self, requests, *rest):
    queries = [query for group, _ in requests for query in group]
{textwrap.indent(code, "    ")}
    return answer(self, requests, *rest)
Predictor.predict_together = predict_together
"""


@contextlib.contextmanager
def serving(
    store: Path | str, *flags: object, prelude: str = "", keys: str = "", key: str = "", **variables: str
) -> Iterator[Server]:
    """Serve a store on a free port.

    Args:
        prelude: Python code that the server process runs first.
        keys: Lines of the file of API keys.
        key: The API key that the client of the server sends.
    """
    program = f"{prelude}\nimport sys, recollect\nsys.exit(recollect.main())"
    start = subprocess.Popen if "PYTHONPATH" in variables else forked.Popen  # other code needs a new interpreter
    with tempfile.TemporaryDirectory() as folder:
        log, key_file = Path(folder) / "log", Path(folder) / "keys"
        if keys:
            key_file.write_text(keys, encoding="utf-8")
            flags = ("--api-keys", key_file, *flags)
        flags = ("serve", "--store", store, "--port", 0, "--threads", 1, *flags)
        with log.open("wb") as stderr:
            process = start(
                [sys.executable, "-c", program, *map(str, flags)],
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                env=environment(**variables),
            )
        try:
            server = Server(process, log, key)
            with server.client:
                yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Load:
    """Threads that send requests continuously. `ask` returns the kind of an answer, and what is wrong with it."""

    def __init__(self, ask: Callable[[], tuple[str, str]], threads: int = 4) -> None:
        self.answers: list[str] = []
        self.wrong: list[str] = []
        self._ask, self._stopped = ask, threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]

    def _work(self) -> None:
        while not self._stopped.wait(0.005):
            try:
                kind, problem = self._ask()
            except Exception as error:
                kind, problem = "", repr(error)
            self.answers.append(kind)
            if problem:
                self.wrong.append(problem)

    def wait_for(self, more: int, of: str | None = None) -> None:
        """Wait for this number of further answers, of any kind or of one kind."""

        def count() -> int:
            return len(self.answers) if of is None else self.answers.count(of)

        enough = count() + more
        until(lambda: count() >= enough, lambda: str(self.wrong))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Send no more requests."""
        self._stopped.set()

    def __exit__(self, *_: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()


_places = itertools.count()


def free_port() -> int:
    """A free port: not one that the kernel gives out, and in a range that only this process of pytest uses."""
    first = 10_000 + 1_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = first + next(_places) % 1_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def answers(port: int) -> bool:
    """Whether a program listens on a port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def copy_store(store: Path, to: Path) -> Path:
    """A copy of the store, which a test may change; no server uses the copy yet."""
    return shutil.copytree(store, to, ignore=shutil.ignore_patterns("replicas"))


def write_lines(path: Path, rows: list[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
