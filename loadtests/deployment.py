"""A whole deployment on this machine: a real Redis, replicas that share a store, and a real nginx in front."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from client import Address
from replica import Replica

_PATIENCE_SECONDS = 20.0

# Asking again is right: answering changes nothing. A replica that fails is tried again at once, as there are so few.
_NGINX = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 8192;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    upstream replicas {{
        {replicas}
        keepalive 256;
        keepalive_requests 1000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_next_upstream error timeout http_503 non_idempotent;
        }}
    }}
}}
"""


class MissingProgramError(Exception):
    """A program that the deployment needs is not installed."""


class Program:
    """A server of someone else's, on one port; it may be killed and started again there."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        if shutil.which(command[0]) is None:
            raise MissingProgramError(f"{command[0]}: expected it installed; `apt-get install redis-server nginx`")
        self._command, self.port, self._log = command, port, log
        self.start()

    def start(self) -> None:
        """Start, and return once it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise MissingProgramError(f"{self._command[0]} did not start: {self._log.read_text().strip()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Deployment:
    """All processes; `address` is nginx's."""

    def __init__(self, redis: Program, replicas: list[Replica], address: Address, redis_url: str) -> None:
        self.redis, self.replicas, self.address, self.redis_url = redis, replicas, address, redis_url


@contextlib.contextmanager
def deployed(store: Path, folder: Path, replicas: int, flags: list[str]) -> Iterator[Deployment]:
    """Redis, replicas and nginx on free ports, gone afterwards; they log in `folder`.

    Raises:
        MissingProgramError: If Redis or nginx is not installed, or does not start.
        ReplicaError: If a replica does not start.
    """
    with contextlib.ExitStack() as stack:
        redis_port, nginx_port, *ports = _free_ports(2 + replicas)
        redis_command = ["redis-server", "--port", str(redis_port), "--bind", "127.0.0.1", "--dir", str(folder)]
        redis = Program([*redis_command, "--save", ""], redis_port, folder / "redis.log")
        stack.callback(redis.stop)
        redis_url = f"redis://127.0.0.1:{redis_port}/0"
        started = []
        for port in ports:
            started.append(Replica(store, folder, port, flags, redis_url=redis_url))
            stack.callback(started[-1].stop)
        servers = "\n        ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in ports)
        configuration = folder / "nginx.conf"
        configuration.write_text(_NGINX.format(folder=folder, port=nginx_port, replicas=servers), encoding="utf-8")
        nginx = Program(["nginx", "-e", "stderr", "-c", str(configuration)], nginx_port, folder / "nginx.log")
        stack.callback(nginx.stop)
        address = Address("127.0.0.1", nginx_port)
        yield Deployment(redis, started, address, redis_url)


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on; all held at once, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
