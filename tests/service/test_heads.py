"""Heads that the service reads as plain HTTP/1.1, and heads that it refuses: `Upgrade`, `Host`, versions, `HEAD`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest

from tests.service.http_helpers import PATIENCE_SECONDS, Server, serving
from tests.service.raw_http import BODY, CHUNKED, WHOLE, answer_to, assert_refused, connect, received_for, statuses

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LIVE = b"GET /health/live HTTP/1.1\r\n%b\r\n"
LAST = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as client:
        yield client


def with_fields(request: bytes, fields: bytes) -> bytes:
    """The request with further header fields."""
    return request.replace(b"\r\n", b"\r\n" + fields, 1)


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize("request_", [WHOLE, CHUNKED + CHUNKS], ids=["length", "chunks"])
@pytest.mark.parametrize("step", [1 << 20, 7], ids=["at once", "in pieces"])
def test_request_that_offers_an_upgrade_is_answered_as_http_1(
    server: Server, offer: bytes, request_: bytes, step: int
) -> None:
    sent = with_fields(request_, offer) * 2 + LAST
    pieces = [sent[start : start + step] for start in range(0, len(sent), step)]
    received = received_for(server, *pieces)
    assert statuses(received) == [200, 200, 200]
    assert received.count(b'"labels"') == 2


def test_offer_of_an_upgrade_in_a_request_without_a_body_is_ignored(server: Server) -> None:
    assert statuses(received_for(server, with_fields(LIVE % b"Host: x\r\n", WEBSOCKET) + LAST)) == [200, 200]


def test_thousands_of_pipelined_offers_are_refused_like_other_requests(server: Server) -> None:
    received = received_for(server, with_fields(WHOLE, H2C) * 500)
    assert set(statuses(received)) == {200}
    assert len(statuses(received)) < 500


@pytest.mark.parametrize(
    "head",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/0.9\r\n\r\n",
        b"CONNECT other:80 HTTP/1.1\r\nHost: other\r\n\r\n",
        LIVE % b"",
        LIVE % b"Host: a\r\nHost: b\r\n",
        LIVE % b"Host: x\r\nhost: x\r\n",
        LIVE % b"Host: a b\r\n",
        LIVE % b"Host: a/b\r\n",
        LIVE % b"Host: user@x\r\n",
        LIVE % b"Host: x:port\r\n",
        LIVE % b"Host: \xc3\xa9\r\n",
        LIVE % b"Host: [::1\r\n",
    ],
)
def test_head_of_another_protocol_or_without_one_valid_host_gets_400(server: Server, head: bytes) -> None:
    assert_refused(server, head, 400, "invalid_http")


@pytest.mark.parametrize(
    "fields",
    [b"Host: shop.example\r\n", b"Host: x:80\r\n", b"Host: [::1]:80\r\n", b"Host:\r\n", b"Host: under_score.x\r\n"],
)
def test_valid_host_is_accepted(server: Server, fields: bytes) -> None:
    assert statuses(received_for(server, LIVE % (fields + b"Connection: close\r\n"))) == [200]


def test_http_1_0_needs_no_host(server: Server) -> None:
    assert statuses(received_for(server, b"GET /health/live HTTP/1.0\r\n\r\n")) == [200]


def test_refused_head_request_gets_no_body(server: Server) -> None:
    received = received_for(server, b"HEAD /health/live HTTP/1.1\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip", "unknown"])
def test_compressed_body_gets_415_before_it_is_parsed(client: httpx.Client, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    for path in ("/predict", "/predict/batch"):
        response = client.post(path, content=gzip.compress(BODY), headers=headers)
        assert (response.status_code, response.json()["code"]) == (415, "unsupported_encoding")
        assert response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_body_with_the_encoding_identity_is_accepted(client: httpx.Client, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    assert client.post("/predict", content=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path", ["/health/live", "/health/ready", "/version", "/labels/Law", "/metrics", "/docs", "/openapi.json"]
)
def test_head_has_the_status_and_the_headers_of_get_without_a_body(client: httpx.Client, path: str) -> None:
    got, head = client.get(path), client.head(path)
    changing = {"date", "x-request-id"} | ({"content-length"} if path == "/metrics" else set())
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert {name: value for name, value in head.headers.items() if name not in changing} == {
        name: value for name, value in got.headers.items() if name not in changing
    }
    assert int(head.headers["content-length"]) > 0


def test_head_of_a_path_without_get_is_refused(client: httpx.Client) -> None:
    refused = client.head("/predict")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")


def test_head_works_on_the_admin_interface(light_versions: Path) -> None:
    with serving(light_versions, "--poll-seconds", "600", "--admin-port", "0") as server:
        admin = server.events("serving")[0]["admin"]
        assert httpx.head(f"{admin}/admin/versions").status_code == 200


def test_connection_stays_open_after_an_offer_of_an_upgrade(server: Server) -> None:
    with connect(server) as connection:
        for _ in range(2):
            connection.sendall(with_fields(WHOLE, H2C))
            answer = HTTPResponse(connection)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["version"]) == (200, "v3")


def test_problem_of_a_refused_head_names_the_reason(server: Server) -> None:
    assert "found 2" in answer_to(server, LIVE % b"Host: a\r\nHost: b\r\n")[1]["detail"]
    assert "HTTP/2.0" in answer_to(server, b"GET / HTTP/2.0\r\nHost: x\r\n\r\n")[1]["detail"]
