"""TLS of the service, and of its connections to Redis."""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from recollect.core.errors import RedisError
from recollect.service.redis_client import RedisClient
from tests.processes import PATIENCE_SECONDS, Server, metric, run, serving, until
from tests.service.certificates import Certificate, write_certificate
from tests.service.redis_server import needs_redis, running_redis


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return write_certificate(tmp_path_factory.mktemp("tls"), days=14.5)


@pytest.fixture(scope="module")
def server(light_versions: Path, certificate: Certificate) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600", *certificate.flags()) as server:
        yield server


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


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_versions_before_1_2_are_refused(server: Server, certificate: Certificate) -> None:
    context = trusting(certificate)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with server.connect() as connection, pytest.raises(ssl.SSLError):
        context.wrap_socket(connection, server_hostname="127.0.0.1")


def start_error(store: Path, certificate: Path, key: Path) -> str:
    """The one line with which the service refuses to start."""
    flags = ("--port", 0, "--tls-cert", certificate, "--tls-key", key)
    (line,) = run("serve", "--store", store, *flags, status=2).stderr.splitlines()
    return line


def test_error_for_files_that_are_no_certificate_or_do_not_belong_together(
    light_versions: Path, tmp_path: Path
) -> None:
    for name in ("one", "two", "encrypted"):
        (tmp_path / name).mkdir()
    one, two = write_certificate(tmp_path / "one"), write_certificate(tmp_path / "two")
    encrypted = write_certificate(tmp_path / "encrypted", password=b"secret")
    text = tmp_path / "text"
    text.write_text("no certificate")
    for certificate, key in ((one.certificate, two.key), (text, one.key), encrypted):
        error = start_error(light_versions, certificate, key)
        assert "expected a certificate and its private key in PEM format" in error


def test_log_warns_of_secrets_that_other_users_can_read(light_versions: Path, tmp_path: Path) -> None:
    files, keys = write_certificate(tmp_path), tmp_path / "keys"
    keys.write_text("front front-0123456789abcdef\n", encoding="utf-8")
    for path in (files.key, keys):
        path.chmod(0o644)
    flags = ("--api-keys", keys, "--redis-url", "redis://:hunter2-hunter2@127.0.0.1:1", *files.flags())
    with serving(light_versions, *flags) as server:
        warned = server.events("secrets_readable_by_others")
        assert [(event["path"], event["advice"]) for event in warned] == [
            (str(files.key), "chmod 600"),
            (str(keys), "chmod 600"),
        ]
        assert [event["flag"] for event in server.events("secret_in_command_line")] == ["--redis-url"]
        assert "hunter2" not in server.log()


@pytest.mark.parametrize("days", [13.5, -1.5])
def test_end_of_the_certificate_is_a_metric_and_logged_in_its_last_14_days(
    light_versions: Path, tmp_path: Path, days: float
) -> None:
    files = write_certificate(tmp_path, days=days)
    end = x509.load_pem_x509_certificate(files.certificate.read_bytes()).not_valid_after_utc
    with serving(light_versions, "--poll-seconds", "600", *files.flags()) as server:
        warning = server.wait_for("certificate_ends")
        assert (warning["days"], warning["end"]) == (math.floor(days), end.isoformat())
        with httpx.Client(base_url=server.url, verify=False) as client:
            assert metric(client, "recollect_certificate_end_seconds") == end.timestamp()


def test_certificate_that_lasts_long_is_not_logged(server: Server) -> None:
    assert server.events("certificate_ends") == []


@needs_redis
def test_replicas_share_redis_over_tls(light_versions: Path, tmp_path: Path, certificate: Certificate) -> None:
    with running_redis(tmp_path, certificate) as redis:
        flags = ("--poll-seconds", "600", "--redis-url", redis.url)
        with serving(light_versions, *flags) as server:
            assert "degraded" not in httpx.get(f"{server.url}/health/ready").json()
            with redis.client() as client:
                until(lambda: client.keys("recollect:*"))
        untrusted = redis.url.partition("?")[0]
        with serving(light_versions, "--poll-seconds", "600", "--redis-url", untrusted) as server:
            until(lambda: "certificate" in str(httpx.get(f"{server.url}/health/ready").json().get("degraded")))
            assert "certificate" in server.wait_for("redis_down")["error"]


@needs_redis
def test_advice_for_a_tls_error_of_redis_fits_its_cause(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("redis", "expired", "other")]
    for folder in folders:
        folder.mkdir()
    good, expired, other = (
        write_certificate(folder, days=days) for folder, days in zip(folders, (1, -1, 1), strict=True)
    )

    def error(url: str) -> str:
        client = RedisClient(url, "recollect")
        with pytest.raises(RedisError) as raised:
            client.execute(lambda redis: redis.ping())
        return str(raised.value)

    with running_redis(tmp_path, good) as redis:
        assert "ssl_ca_certs" in error(redis.url.partition("?")[0])
        assert "ssl_ca_certs" in error(redis.url.replace(str(good.certificate), str(other.certificate)))
        assert "another name" in error(redis.url.replace("127.0.0.1", "[::1]"))
        assert "a file that --redis-url names cannot be read" in error(f"{redis.url}.missing")
    with running_redis(tmp_path, expired) as redis:
        assert "has expired" in error(redis.url)
    with running_redis(tmp_path, good, "--tls-auth-clients", "yes", "--tls-ca-cert-file", good.certificate) as redis:
        assert "ssl_certfile" in error(redis.url)
