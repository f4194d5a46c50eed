"""TLS of the public interface, of the admin interface, and of the connections to Redis."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from recollect.service.connection import tls_connection
from recollect.service.connection.connections import Connections
from recollect.service.connection.protocol import BoundedProtocol
from recollect.service.connection.tls import Tls
from recollect.service.connection.tls_connection import TlsConnection
from recollect.service.errors import SettingsError
from recollect.service.serve_settings import ServeSettings, require_consistent
from tests.service.certificates import Certificate, write_certificate
from tests.service.http_helpers import PATIENCE_SECONDS, Server, serving
from tests.service.redis_server import RedisServer, needs_redis


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(light_versions: Path, certificate: Certificate) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", "--admin-port", "0", *certificate.flags()) as server:
        yield server


def tcp_connection(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=PATIENCE_SECONDS)


def trusting(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.certificate))


def test_service_with_a_certificate_answers_over_https(server: Server, certificate: Certificate) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    with httpx.Client(base_url=server.url, verify=trusting(certificate), timeout=PATIENCE_SECONDS) as client:
        for _ in range(2):
            assert client.post("/predict", json={"query": "bread"}).status_code == 200
        large = client.post("/predict", json={"query": "bread " * 100_000})
        assert large.status_code in (200, 413, 422)
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)  # the certificate is not trusted


def metrics_of(server: Server, certificate: Certificate) -> str:
    """The metrics, as a new client reads them."""
    answer = httpx.get(f"{server.url}/metrics", verify=trusting(certificate), timeout=PATIENCE_SECONDS)
    return answer.raise_for_status().text


def test_handshakes_that_never_end_are_counted_and_do_not_lock_out_other_clients(
    light_versions: Path, certificate: Certificate
) -> None:
    flags = ("--poll-seconds", "600", "--max-connections", "4", *certificate.flags())
    with serving(light_versions, *flags) as server, contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(tcp_connection(server))
        assert metrics_of(server, certificate)
        metrics = metrics_of(server, certificate)
        assert float(re.findall(r"^recollect_connections (\S+)$", metrics, re.MULTILINE)[0]) <= 4
        refused = re.findall(r'refused_total{reason="too_many_connections"} (\S+)$', metrics, re.MULTILINE)
        assert float(refused[0]) >= 96


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_handshake_has_a_time_limit_and_answers_are_whole(
    loop: Callable[[], asyncio.AbstractEventLoop], certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "_HANDSHAKE_SECONDS", 0.2)
    body = b"x" * 5_000_000
    headers = [(b"connection", b"close"), (b"content-length", b"%d" % len(body))]

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def read_late(address: tuple[str, int]) -> bytes:
        tcp = socket.create_connection(address, timeout=PATIENCE_SECONDS)
        with trusting(certificate).wrap_socket(tcp, server_hostname="127.0.0.1") as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(1.5)  # longer than a closed connection waits for its client after the last byte
            answer = b""
            while received := client.recv(65_536):
                answer += received
            return answer

    async def exchange() -> tuple[bytes, bytes, int]:
        config, opened = uvicorn.Config(large, log_config=None, access_log=False), Connections(4, None)
        context = Tls(*certificate).context

        def connect() -> TlsConnection:
            return TlsConnection(BoundedProtocol(config, ServerState(), {}, open_connections=opened), context, opened)

        server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        with socket.create_connection(address, timeout=PATIENCE_SECONDS) as silent:
            silence = await asyncio.to_thread(silent.recv, 1)
        monkeypatch.setattr(tls_connection, "_HANDSHAKE_SECONDS", PATIENCE_SECONDS)
        answer = await asyncio.to_thread(read_late, address)
        while opened._open:
            await asyncio.sleep(0.01)
        server.close()
        return silence, answer, len(opened._waiting)

    with asyncio.Runner(loop_factory=loop) as runner:
        silence, answer, waiting = runner.run(asyncio.wait_for(exchange(), PATIENCE_SECONDS))
    assert (silence, waiting) == (b"", 0)
    assert answer.endswith(b"\r\n\r\n" + body)


def test_idle_clients_that_do_not_read_do_not_delay_the_shutdown(
    light_versions: Path, certificate: Certificate
) -> None:
    flags = ("--poll-seconds", "600", "--drain-seconds", "3600", *certificate.flags())
    with serving(light_versions, *flags) as server, contextlib.ExitStack() as stack:
        stack.enter_context(tcp_connection(server))  # a handshake that does not end
        tcp = tcp_connection(server)
        client = stack.enter_context(trusting(certificate).wrap_socket(tcp, server_hostname="127.0.0.1"))
        client.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(65_536)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
        assert '"error"' not in server.log()


def test_admin_interface_on_loopback_uses_no_tls(server: Server) -> None:
    admin = server.events("serving")[0]["admin"]
    assert admin.startswith("http://127.0.0.1:")
    assert httpx.get(f"{admin}/admin/versions").status_code == 200


def test_connection_without_tls_gets_no_answer_from_a_service_with_tls(
    server: Server, certificate: Certificate
) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https://", "http://"), timeout=PATIENCE_SECONDS)
    assert httpx.get(f"{server.url}/health/live", verify=trusting(certificate)).status_code == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_versions_before_1_2_are_refused(server: Server, certificate: Certificate) -> None:
    context = trusting(certificate)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    port = int(server.url.rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    with connection, pytest.raises(ssl.SSLError):
        context.wrap_socket(connection, server_hostname="127.0.0.1")


def test_new_connections_use_a_new_certificate_when_the_files_change(light_versions: Path, tmp_path: Path) -> None:
    files = write_certificate(tmp_path)
    prelude = "from recollect.service.process import uvicorn_server\nuvicorn_server._TLS_CHECK_TICKS = 1\n"
    with (
        serving(light_versions, "--poll-seconds", "600", *files.flags(), prelude=prelude) as server,
        httpx.Client(base_url=server.url, verify=trusting(files)) as old,
    ):
        old.get("/health/live").raise_for_status()
        files.key.write_text("no key")
        server.wait_for("tls_reload_failed")
        httpx.get(f"{server.url}/health/live", verify=trusting(files)).raise_for_status()
        write_certificate(tmp_path)
        server.wait_for("tls_reloaded")
        assert httpx.get(f"{server.url}/health/live", verify=trusting(files)).status_code == 200
        assert old.get("/health/live").status_code == 200  # an open connection stays open


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_error_for_a_missing_file_names_its_flag(tmp_path: Path, missing: str) -> None:
    files = write_certificate(tmp_path)
    getattr(files, missing).unlink()
    flag = "--tls-cert" if missing == "certificate" else "--tls-key"
    with pytest.raises(SettingsError, match=rf"{flag} .*: expected a file in PEM format, found: No such file"):
        Tls(*files)


def test_error_for_files_that_are_no_certificate_or_do_not_belong_together(tmp_path: Path) -> None:
    for name in ("one", "two", "encrypted", "none"):
        (tmp_path / name).mkdir()
    one, two = write_certificate(tmp_path / "one"), write_certificate(tmp_path / "two")
    encrypted = write_certificate(tmp_path / "encrypted", password=b"secret")
    text = tmp_path / "none" / "text"
    text.write_text("no certificate")
    for certificate, key in ((one.certificate, two.key), (text, one.key), (one.certificate, text), encrypted):
        with pytest.raises(SettingsError, match="expected a certificate and its private key in PEM format"):
            Tls(certificate, key)


def test_key_that_is_removed_during_a_reload_keeps_the_certificate_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_certificate(tmp_path)
    tls, text = Tls(*files), files.key.read_bytes()
    files.key.unlink()
    monkeypatch.setattr(Path, "read_bytes", lambda path: text)
    used = tls._loaded
    tls.reload_if_changed()
    assert tls._loaded is used


def test_certificate_without_a_key_is_refused(tmp_path: Path, certificate: Certificate) -> None:
    with pytest.raises(SettingsError, match="--tls-cert: needs --tls-key, which is not set"):
        require_consistent(ServeSettings(store=tmp_path, tls_cert=certificate.certificate))
    with pytest.raises(SettingsError, match="--tls-key: needs --tls-cert, which is not set"):
        require_consistent(ServeSettings(store=tmp_path, tls_key=certificate.key))


def test_log_warns_that_other_users_can_read_the_key(light_versions: Path, tmp_path: Path) -> None:
    files = write_certificate(tmp_path)
    files.key.chmod(0o644)
    with serving(light_versions, "--poll-seconds", "600", *files.flags()) as server:
        assert server.events("tls_key_readable_by_others")[0]["path"] == str(files.key)


@needs_redis
def test_replicas_share_redis_over_tls(light_versions: Path, tmp_path: Path, certificate: Certificate) -> None:
    redis = RedisServer(tmp_path, certificate)
    redis.start()
    try:
        flags = ("--poll-seconds", "600", "--redis-url", redis.url)
        with serving(light_versions, *flags) as server:
            assert "degraded" not in httpx.get(f"{server.url}/health/ready").json()
            deadline = time.monotonic() + PATIENCE_SECONDS
            with redis.client() as client:
                while not client.keys("recollect:*"):
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
        untrusted = redis.url.partition("?")[0]
        with serving(light_versions, "--poll-seconds", "600", "--redis-url", untrusted) as server:
            assert httpx.get(f"{server.url}/health/ready").json()["degraded"]
            assert "certificate" in server.wait_for("redis_down")["error"]
    finally:
        redis.stop()
