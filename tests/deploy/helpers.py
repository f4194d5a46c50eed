"""Helpers of these tests: paths in deploy/, tools that check the files there, a real nginx, and fake replicas."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest

from tests import web
from tests.processes import PATIENCE_SECONDS, answers, free_port, until

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"


def require_tool(name: str) -> str:
    """The path of a program in the Python environment or on the machine; skip the test if the program is missing."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])
    if (found := shutil.which(name, path=path)) is None:
        pytest.skip(f"{name} is not installed")
    return found


def run_tool(name: str, *arguments: Any) -> str:
    """Run a tool that must succeed; return the tool's output."""
    result = subprocess.run([require_tool(name), *map(str, arguments)], capture_output=True, text=True, cwd=REPOSITORY)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def write_nginx_conf(folder: Path, listen: str, replicas: tuple[str, str]) -> Path:
    """Fill in the template deploy/nginx.conf, as the nginx image does."""
    text = Template((DEPLOY / "nginx.conf").read_text(encoding="utf-8"))
    path = folder / "nginx.conf"
    filled = text.safe_substitute(LISTEN=listen, REPLICA_1=replicas[0], REPLICA_2=replicas[1])
    path.write_text(filled, encoding="utf-8")
    return path


@contextlib.contextmanager
def nginx_in_front_of(folder: Path, *replicas: str) -> Iterator[str]:
    """Run nginx with deploy/nginx.conf in front of two addresses; yield its URL. nginx writes its logs to `folder`."""
    first, second = replicas
    listen = free_address()
    conf = write_nginx_conf(folder, listen, (first, second))
    with run_nginx(folder, conf, listen):
        yield f"http://{listen}"


@contextlib.contextmanager
def run_nginx(folder: Path, conf: Path, listen: str) -> Iterator[None]:
    """Run nginx with a configuration that listens at an address. nginx writes its logs to `folder`."""
    command = [require_tool("nginx"), "-e", "stderr", "-p", str(folder), "-c", str(conf), "-g", "daemon off;"]
    with (folder / "access").open("wb") as access, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=access, stderr=errors)
    try:
        port = int(listen.split(":")[1])
        until(lambda: answers(port) or process.poll() is not None, lambda: "nginx does not listen")
        assert process.poll() is None, (folder / "errors").read_text()
        yield
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)


# The answer of a fake replica: status and additional headers.
Answer = tuple[int, dict[str, str]]
FINE: Answer = (200, {})
OVERLOADED: Answer = (503, {"Retry-After": "1"})


class FakeReplica:
    """A fake replica that gives the same answer to every request, and records requests and connections."""

    def __init__(self, name: str) -> None:
        self.answer = FINE
        self.requests: list[tuple[str, dict[str, str], bytes]] = []  # path, headers and body
        self.connections = 0
        replica = self

        class Handler(web.Handler):
            def setup(self) -> None:
                super().setup()
                replica.connections += 1

            def respond(self) -> None:
                received = {name.lower(): value for name, value in self.headers.items()}
                replica.requests.append((self.path, received, self.body()))
                status, headers = replica.answer
                self.answer(status, name.encode(), {"X-Request-Id": self.headers["X-Request-Id"], **headers})

            do_GET = do_POST = do_DELETE = respond  # noqa: N815

        self._running = web.answering(Handler)

    def __enter__(self) -> FakeReplica:
        self.address = f"127.0.0.1:{self._running.__enter__()}"
        return self

    def __exit__(self, *ended: Any) -> None:
        self._running.__exit__(*ended)
