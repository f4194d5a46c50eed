"""Bodies with the encoding `identity`, and requests with the method `HEAD`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.processes import Server, serving

BODY = b'{"query": "bread"}'


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> httpx.Client:
    return server.client


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
