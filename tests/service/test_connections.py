"""The number of connections, clients that do not read, and the logs and metrics of refused connections."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import uvloop
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from recollect.service.connection import connections, write_timeout
from recollect.service.connection.connections import Connections, usable_connections
from recollect.service.connection.protocol import BoundedProtocol
from recollect.service.connection.write_timeout import WriteTimeout, _acknowledged_bytes
from tests.service.http_helpers import PATIENCE_SECONDS, Server, serving
from tests.service.raw_http import HEAD, WHOLE, answer_to, connect, next_status, received_for, statuses

LIMIT = 4
LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
# Requests for more than a megabyte of answers.
MANY = LIVE.replace(b"/health/live", b"/openapi.json") * 100
# Program of a server with a short write timeout. Small buffers in the kernel let answers wait in the server.
SHORT_WRITE_TIME = """
import socket
from recollect.service import addresses
from recollect.service.connection import write_timeout
start_listening = addresses.start_listening
def start_with_small_buffers(bound):
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    start_listening(bound)
addresses.start_listening = start_with_small_buffers
write_timeout._WRITE_SECONDS = 0.5
"""
# Program of a server that answers /metrics?hold only when the client disconnects.
HOLDS = """
from recollect.service.process import uvicorn_server
create = uvicorn_server.UvicornServer.__init__
def create_with_hold(self, app, *rest):
    async def hold(scope, receive, send):
        if scope.get("query_string") != b"hold":
            return await app(scope, receive, send)
        while (await receive())["type"] != "http.disconnect":
            pass
    create(self, hold, *rest)
uvicorn_server.UvicornServer.__init__ = create_with_hold
"""
HELD = b"GET /metrics?hold HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n"
SHORT_RESERVED_TIME = "from recollect.service.connection import protocol\nprotocol._RESERVED_SECONDS = 0.3\n"
FLAGS = ("--poll-seconds", "600", "--max-connections", str(LIMIT))


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, *FLAGS, prelude=SHORT_WRITE_TIME + HOLDS) as server:
        yield server


@contextlib.contextmanager
def open_connections(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have received an answer, so that the server has counted them."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = stack.enter_context(connect(server))
            connection.sendall(LIVE)
            assert next_status(connection) == 200
            opened.append(connection)
        yield opened
    until_open(server, 1)  # the connection that asks


@contextlib.contextmanager
def held_connections(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """Connections with a request in progress that has no answer before the end of the block."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(count):
            connection = stack.enter_context(connect(server))
            connection.sendall(HELD)
            assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
            held.append(connection)
        yield held
    until_open(server, 1)


def next_status_of(server: Server, request: bytes) -> int:
    with connect(server) as connection:
        connection.sendall(request)
        return next_status(connection)


def metric(server: Server, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(value)


def until_open(server: Server, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while metric(server, "recollect_connections") != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refused(server: Server, reason: str) -> float:
    return metric(server, f'recollect_connections_refused_total{{reason="{reason}"}}')


def test_connection_over_the_limit_gets_503_and_requests_in_progress_continue(server: Server) -> None:
    before = refused(server, "too_many_connections")
    with held_connections(server, LIMIT) as held:
        line, problem = answer_to(server, WHOLE)
        assert line.startswith(b"HTTP/1.1 503 ")
        assert problem["code"] == "too_many_connections"
        for connection in held:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):  # it is still open
                connection.recv(1)
    assert refused(server, "too_many_connections") == before + 1
    assert httpx.get(f"{server.url}/version").status_code == 200


def test_503_over_the_limit_has_retry_after(server: Server) -> None:
    with held_connections(server, LIMIT):
        assert b"\r\nRetry-After: 1\r\n" in received_for(server, WHOLE)


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/metrics?x=1"])
def test_connection_over_the_limit_may_ask_for_the_state_and_is_then_closed(server: Server, path: str) -> None:
    request = LIVE.replace(b"/health/live", path.encode())
    with held_connections(server, LIMIT):
        assert statuses(received_for(server, request)) == [200]


def test_idle_connection_over_the_limit_is_closed_soon(light_versions: Path) -> None:
    with (
        serving(light_versions, *FLAGS, prelude=SHORT_RESERVED_TIME + HOLDS) as server,
        held_connections(server, LIMIT),
    ):
        assert received_for(server) == b""
        assert statuses(received_for(server, HEAD)) == [408]


def test_connections_over_the_reserve_are_refused_at_once(server: Server) -> None:
    with held_connections(server, LIMIT + connections._RESERVED):
        assert statuses(received_for(server)) == [503]


def test_silent_connections_do_not_lock_out_other_clients(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for sent in (b"", HEAD):
            for _ in range(LIMIT + connections._RESERVED + 1):
                stack.enter_context(connect(server)).sendall(sent)
            for _ in range(3):
                assert next_status_of(server, LIVE) == 200
                assert next_status_of(server, WHOLE) == 200
        assert metric(server, "recollect_connections") <= LIMIT
    until_open(server, 1)


def test_new_connection_replaces_the_connection_that_is_idle_the_longest(server: Server) -> None:
    with open_connections(server, LIMIT) as idle:
        idle[0].sendall(LIVE)
        assert next_status(idle[0]) == 200
        assert next_status_of(server, WHOLE) == 200
        assert idle[1].recv(1) == b""
        for connection in (idle[0], *idle[2:]):
            connection.sendall(LIVE)
            assert next_status(connection) == 200


def test_connections_of_a_process_are_limited_by_its_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, usable in ((1024, 736), (256, 96), (10, 1), (1 << 20, 4096), (-1, 4096)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert usable_connections(4096) == usable


def test_open_connections_are_counted(server: Server) -> None:
    with open_connections(server, 2):
        until_open(server, 3)


def test_refused_connections_are_counted_by_reason(server: Server) -> None:
    before = {reason: refused(server, reason) for reason in ("invalid_http", "head_too_large")}
    received_for(server, b"hello\r\n\r\n")
    received_for(server, HEAD + b"X-Long: " + b"x" * 40_000)
    for reason, count in before.items():
        assert refused(server, reason) == count + 1


def test_refused_connections_are_logged_at_most_once_a_second_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_LOG_SECONDS", 0.05)

    async def refuse() -> list[Any]:
        with capture_logs() as logged:
            opened = Connections(LIMIT, None)
            for number in range(50):
                opened.record_refusal("invalid_http", f"10.0.0.{number}")
            opened.record_refusal("head_too_large", "10.0.0.1")
            while opened._unlogged:
                await asyncio.sleep(0.01)
            opened.record_refusal("invalid_http", "10.0.0.2")
        return logged

    logged = asyncio.run(refuse())
    assert {event["event"] for event in logged} == {"connections_refused"}
    assert [event["count"] for event in logged if event["reason"] == "invalid_http"] == [1, 49, 1]
    assert [event["count"] for event in logged if event["reason"] == "head_too_large"] == [1]


def test_client_that_does_not_read_its_answers_loses_its_connection(server: Server) -> None:
    before = refused(server, "write_timeout")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").split(":")
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect((host, int(port)))
        connection.sendall(MANY)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while refused(server, "write_timeout") == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with contextlib.suppress(ConnectionError):
            while connection.recv(65536):
                pass
    until_open(server, 1)


class FullTransport(asyncio.Transport):
    """A transport in whose buffer bytes wait until it is aborted."""

    aborted = False

    def get_write_buffer_size(self) -> int:
        return 0 if self.aborted else 1

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted = True


def test_connection_is_aborted_only_when_its_client_acknowledges_no_further_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_timeout, "_WRITE_SECONDS", 0.001)
    acknowledged = iter([0, 10, 20, 30, 30])
    monkeypatch.setattr(write_timeout, "_acknowledged_bytes", lambda _: next(acknowledged))

    async def watch() -> int:
        transport, calls = FullTransport(), []
        timeout = WriteTimeout(transport, transport, lambda: calls.append(transport.aborted))
        timeout.start()
        while not transport.aborted:
            timeout.start()  # further answers do not restart the timer
            await asyncio.sleep(0.001)
        return len(calls)

    assert asyncio.run(watch()) == 1
    assert list(acknowledged) == []


def test_acknowledged_bytes_are_the_bytes_that_the_client_received() -> None:
    async def send() -> tuple[int, int]:
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
            client.connect(listener.getsockname())
            accepted, _ = listener.accept()
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=accepted)
            before = _acknowledged_bytes(transport)
            transport.write(b"x" * 1_000)
            client.recv(1_000, socket.MSG_WAITALL)
            while _acknowledged_bytes(transport) == before:
                await asyncio.sleep(0.001)
            after = _acknowledged_bytes(transport)
            transport.abort()
            return before, after

    before, after = asyncio.run(send())
    assert after - before == 1_000


async def no_content(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "sent",
    [LIVE, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, b"hello\r\n\r\n", b"CONNECT x HTTP/1.1\r\n\r\n", HEAD],
    ids=["answered", "large head", "no HTTP", "CONNECT", "half"],
)
def test_closed_connection_needs_no_garbage_collector(
    loop: Callable[[], asyncio.AbstractEventLoop], sent: bytes
) -> None:
    async def exchange() -> int:
        alive: weakref.WeakSet[BoundedProtocol] = weakref.WeakSet()
        config = uvicorn.Config(no_content, log_config=None, access_log=False)

        def connection() -> BoundedProtocol:
            alive.add(made := BoundedProtocol(config, ServerState(), {}, open_connections=opened))
            return made

        opened = Connections(LIMIT, None)
        server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(sent)
        while not alive:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        writer.close()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while alive and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        server.close()
        return len(alive)

    gc.disable()
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(exchange()) == 0
    finally:
        gc.enable()
