"""A real Redis server on its own port, which tests can stop, restart and suspend, and replicas that use it."""

from __future__ import annotations

import contextlib
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis

from tests.processes import Server, answers, free_port, serving, until
from tests.service.certificates import Certificate

PASSWORD = "correct-horse-battery"

# With this setting, a replica reads the store only at its start.
NEVER_POLLS = ("--poll-seconds", "600")

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


class RedisServer:
    """A `redis-server` process without persistence: it restarts empty. With a certificate it accepts only TLS."""

    def __init__(self, folder: Path, certificate: Certificate | None = None, *flags: object) -> None:
        self.port = free_port()
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        self._folder = folder
        self._port_flags = ["--port", str(self.port)]
        if certificate:
            self.url = f"{self.url.replace('redis:', 'rediss:')}?ssl_ca_certs={certificate.certificate}"
            self._port_flags = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            files = {"--tls-cert-file": certificate.certificate, "--tls-key-file": certificate.key}
            self._port_flags += [str(word) for flag in files.items() for word in flag]
        self._port_flags += map(str, flags)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flags = [*self._port_flags, "--save", "", "--requirepass", PASSWORD, "--dir", str(self._folder)]
        self._process = subprocess.Popen(["redis-server", *flags], stdout=subprocess.DEVNULL)
        until(lambda: answers(self.port))

    def stop(self) -> None:
        if self._process:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def suspend(self) -> None:
        """Suspend the server: connections stay open, but get no answers."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True)


@contextlib.contextmanager
def running_redis(folder: Path, certificate: Certificate | None = None, *flags: object) -> Iterator[RedisServer]:
    server = RedisServer(folder, certificate, *flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def replica(
    store: Path, redis_server: RedisServer, *flags: str, **options: str
) -> Iterator[tuple[Server, httpx.Client]]:
    variables = {"RECOLLECT_REDIS_URL": redis_server.url, "RECOLLECT_REDIS_MS": "5000"} | options  # a busy machine
    with serving(store, *flags, **variables) as server:
        yield server, server.client


class Forwarder(socketserver.ThreadingTCPServer):
    """A stable address in front of Redis servers: a new connection goes to the present target, an open one stays."""

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarded)
        self.target = target


class _Forwarded(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Forwarder)
        with socket.create_connection(("127.0.0.1", self.server.target)) as target, contextlib.suppress(OSError):
            other = {self.request: target, target: self.request}
            while True:
                for source in select.select([*other], [], [])[0]:
                    if not (content := source.recv(65_536)):
                        return
                    other[source].sendall(content)


@contextlib.contextmanager
def forwarding(target: int) -> Iterator[Forwarder]:
    with Forwarder(target) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
