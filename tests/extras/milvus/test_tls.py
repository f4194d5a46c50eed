"""TLS connections to Milvus: nginx speaks TLS, and forwards the calls to a server of milvus-lite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.core.errors import EngineError
from recollect.extras.milvus.connection import Connection
from tests.deploy.helpers import free_address, run_nginx, run_tool
from tests.extras.milvus.milvus_bundles import LiteServer, engine_at

pytest.importorskip("pymilvus", reason="pymilvus is not installed")

_CONF = """
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder};
    proxy_temp_path {folder};
    fastcgi_temp_path {folder};
    uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    server {{
        listen {listen} ssl http2;
        ssl_certificate {folder}/server.pem;
        ssl_certificate_key {folder}/server.key;
        location / {{
            grpc_pass grpc://{milvus};
        }}
    }}
}}
"""


def write_certificate(folder: Path, name: str) -> Path:
    """Write a certificate of `localhost` that is its own CA, and its key."""
    arguments = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")
    run_tool("openssl", "req", "-x509", *arguments.split(), "-addext", "subjectAltName=DNS:localhost", *files)
    return folder / f"{name}.pem"


@pytest.fixture
def tls_address(tmp_path: Path) -> Iterator[str]:
    """The address of an nginx that has the certificate `server.pem` and forwards calls to Milvus."""
    write_certificate(tmp_path, "server")
    server, listen, conf = LiteServer(tmp_path / "milvus"), free_address(), tmp_path / "nginx.conf"
    milvus = server.uri.removeprefix("http://")
    conf.write_text(_CONF.format(folder=tmp_path, listen=listen, milvus=milvus), encoding="utf-8")
    with run_nginx(tmp_path, conf, listen):
        yield listen
    server.stop()


def test_milvus_answers_over_tls_if_its_certificate_fits(tls_address: str, tmp_path: Path) -> None:
    port = tls_address.rpartition(":")[2]
    connection = Connection(engine_at(f"https://localhost:{port}", engine_ca=tmp_path / "server.pem"))
    assert connection.call("list_collections") == []
    connection.close()
    for uri, ca in (
        (f"https://localhost:{port}", write_certificate(tmp_path, "other")),  # another CA
        (f"https://localhost:{port}", None),  # the CAs of gRPC
        (f"https://{tls_address}", tmp_path / "server.pem"),  # another host name
    ):
        with pytest.raises(EngineError, match="expected Milvus to answer, .*--engine-token and --engine-ca"):
            Connection(engine_at(uri, engine_ca=ca))
    with pytest.raises(EngineError, match="https:// for TLS"):
        Connection(engine_at(f"http://localhost:{port}"))
