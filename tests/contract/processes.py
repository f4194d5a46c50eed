"""Runs Recollect as a user does: verbs and servers in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests import forked

# No test asserts a time. They wait at most this long, so that a hanging process fails its test.
PATIENCE_SECONDS = 240

# API keys of the servers, and the file that lists them.
READER, EDITOR, SLOW = "reader-0123456789abcdef", "editor-0123456789abcdef", "slow-0123456789abcdef"
OPERATOR = "operator-0123456789abcdef"
KEYS = f"reader {READER} 0\neditor {EDITOR} 0 write\nslow {SLOW} 0.001\noperator {OPERATOR} 0 operate\n"


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
    """A running `recollect serve`, and a client with an API key that may write."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log
        self.url: str = until(self._url, self.log)
        headers = {"X-API-Key": EDITOR}
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS, headers=headers, trust_env=False)

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def _url(self) -> str | None:
        """The address in the line of the log that says that the server answers."""
        lines = self.log().rpartition("\n")[0].splitlines()
        assert self.process.poll() is None, self.log()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return next((event["url"] for event in events if event["event"] == "serving"), None)

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
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serving(store: Path, *flags: object, folder: Path, writable: bool = True, **variables: str) -> Iterator[Server]:
    """Serve a store on a free port. Its log and its API keys are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if writable:
        (folder / "keys").write_text(KEYS)
        flags = ("--api-keys", folder / "keys", "--writable", *flags)
    flags = ("--store", store, "--port", 0, "--threads", 1, "--poll-seconds", 0.1, *flags)
    number = len(list(folder.glob("log-*")))
    with started("serve", *flags, log=folder / f"log-{number}", **variables) as process:
        server = Server(process, folder / f"log-{number}")
        with server.client:
            yield server
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=PATIENCE_SECONDS)


class Redis:
    """A `redis-server` on a free port, which starts empty."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._process = folder, None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    @staticmethod
    def installed() -> bool:
        return shutil.which("redis-server") is not None

    def start(self) -> None:
        flags = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            ["redis-server", *flags], stdout=subprocess.DEVNULL
        )
        until(lambda: answers(self.port))

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


def answers(port: int) -> bool:
    """Whether a program listens on a port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def copied(store: Path, to: Path) -> Path:
    """A copy of a store that nobody serves, which a test may change."""
    return shutil.copytree(store, to)


def write_lines(path: Path, rows: list[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
