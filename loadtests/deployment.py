"""A deployment on this machine: a real Redis, two replicas with the same store, and a real nginx as proxy."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

from loadtests.client import Address
from loadtests.replica import Replica

_START_TIMEOUT_SECONDS = 20.0

# The configuration of nginx: a template with variables for the addresses of nginx and of the replicas.
_NGINX = Path(__file__).parents[1] / "deploy" / "nginx.conf"


class MissingProgramError(Exception):
    """A program that the deployment needs is not installed."""


class Program:
    """A third-party server on one port. It can be killed and started again."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        if shutil.which(command[0]) is None:
            raise MissingProgramError(
                f"{command[0]}: expected an installed program, found none; run `apt-get install redis-server nginx`"
            )
        self._command, self.port, self._log = command, port, log
        self.start()

    @property
    def process(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start the program, and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise MissingProgramError(f"{self._command[0]} did not start: {self._log.read_text().strip()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the program, as a crash would."""
        self._process.kill()
        self._process.wait()

    def stall(self) -> None:
        """Pause the program: its connections stay open, but no request is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the program continue after a pause."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@dataclass(frozen=True)
class Deployment:
    """The processes of the deployment. `address` is the address of nginx."""

    redis: Program
    nginx: Program
    replicas: list[Replica]
    address: Address
    redis_url: str


@contextlib.contextmanager
def deployed(store: Path, folder: Path, flags: list[str]) -> Iterator[Deployment]:
    """Start Redis, two replicas and nginx on free ports, and stop them afterwards. Their logs are in `folder`.

    Raises:
        MissingProgramError: If Redis or nginx is not installed, or does not start.
        ReplicaError: If a replica does not start.
    """
    redis_port, nginx_port, *ports = _free_ports(4)
    redis_url = f"redis://127.0.0.1:{redis_port}/0"
    with contextlib.ExitStack() as stack:
        redis_command = ["redis-server", "--port", str(redis_port), "--bind", "127.0.0.1", "--dir", str(folder)]
        redis = Program([*redis_command, "--save", ""], redis_port, folder / "redis.log")
        stack.callback(redis.stop)
        replicas = []
        for port in ports:
            replicas.append(Replica(store, folder, port, flags, redis_url=redis_url))
            stack.callback(replicas[-1].stop)
        addresses = {"LISTEN": nginx_port, "REPLICA_1": ports[0], "REPLICA_2": ports[1]}
        filled = {name: f"127.0.0.1:{port}" for name, port in addresses.items()}
        configuration = folder / "nginx.conf"
        configuration.write_text(Template(_NGINX.read_text(encoding="utf-8")).safe_substitute(filled), encoding="utf-8")
        nginx_command = ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(configuration), "-g", "daemon off;"]
        nginx = Program(nginx_command, nginx_port, folder / "nginx.log")
        stack.callback(nginx.stop)
        yield Deployment(redis, nginx, replicas, Address("127.0.0.1", nginx_port), redis_url)


def _free_ports(count: int) -> list[int]:
    """Find different free ports, by binding a socket to each of them at the same time."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
