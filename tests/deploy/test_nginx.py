"""Runs a real nginx with deploy/nginx.conf, in front of fake replicas and of real replicas."""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from recollect.service.settings import ServeSettings
from tests.deploy.helpers import (
    DEPLOY,
    FINE,
    OVERLOADED,
    FakeReplica,
    free_address,
    nginx_in_front_of,
    run_nginx,
    write_nginx_conf,
)
from tests.processes import PATIENCE_SECONDS, Load, Server, copy_store, is_problem, serving, until
from tests.service.stores import add_version, light_encoder, make_first

QUERY = {"query": "How doctors treat high blood pressure"}
MAX_BODY_BYTES = ServeSettings.model_fields["max_body_bytes"].default

Replicas = tuple[FakeReplica, FakeReplica]


@pytest.fixture(scope="module")
def two_replicas() -> Iterator[Replicas]:
    with FakeReplica("first") as first, FakeReplica("second") as second:
        yield first, second


@pytest.fixture(scope="module")
def nginx(two_replicas: Replicas, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of nginx in front of two fake replicas."""
    with nginx_in_front_of(tmp_path_factory.mktemp("nginx"), *(each.address for each in two_replicas)) as url:
        yield url


@pytest.fixture
def replicas(two_replicas: Replicas) -> Replicas:
    for replica in two_replicas:
        replica.answer = FINE
        replica.requests.clear()
    return two_replicas


@pytest.fixture
def client(nginx: str, replicas: Replicas) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=nginx) as client:
        yield client


def requests_to(replicas: Replicas) -> list[tuple[str, dict[str, str], bytes]]:
    return [request for replica in replicas for request in replica.requests]


def test_nginx_sends_requests_to_both_replicas_over_persistent_connections(
    client: httpx.Client, replicas: Replicas
) -> None:
    before = [replica.connections for replica in replicas]
    assert {client.post("/predict", json=QUERY).text for _ in range(40)} == {"first", "second"}
    assert all(replica.connections <= count + 1 for replica, count in zip(replicas, before, strict=True))


def test_write_is_sent_to_one_replica_only(client: httpx.Client, replicas: Replicas) -> None:
    replicas[0].answer = OVERLOADED
    posts = ("/memory/instances", "/memory/labels", "/feedback", "/v1/projects/recollect/learn")
    deletes = ("/memory/instances/a/b", "/memory/labels/a", "/feedback/feedback-1")
    for method, path in [*(("POST", path) for path in posts), *(("DELETE", path) for path in deletes)]:
        assert {client.request(method, path).status_code for _ in range(20)} == {200, 503}, path
    assert len(requests_to(replicas)) == 140


KEY = {"Idempotency-Key": "key"}


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [("POST", "/predict", {}), ("POST", "/memory/labels", KEY), ("DELETE", "/memory/instances/a/b", KEY)],
)
def test_query_or_write_with_a_key_that_one_replica_refuses_is_sent_to_the_other_replica(
    client: httpx.Client, replicas: Replicas, method: str, path: str, headers: dict[str, str]
) -> None:
    replicas[0].answer = OVERLOADED
    body = b"x" * 100_000 if method == "POST" else b""
    answers = [client.request(method, path, content=body, headers=headers) for _ in range(20)]
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "second")}
    assert replicas[0].requests
    assert {(request[0], request[2]) for request in requests_to(replicas)} == {(path, body)}
    replicas[1].answer = OVERLOADED
    assert client.request(method, path, content=body, headers=headers).status_code == 503


def test_post_request_that_writes_avoids_a_replica_that_is_down(tmp_path: Path) -> None:
    with FakeReplica("first") as first, nginx_in_front_of(tmp_path, first.address, free_address()) as url:
        assert {httpx.post(f"{url}/feedback", json={}).status_code for _ in range(10)} == {200}


def test_status_503_of_overloaded_replicas_is_forwarded_and_excludes_no_replica(
    client: httpx.Client, replicas: Replicas
) -> None:
    for replica in replicas:
        replica.answer = OVERLOADED
    answers = [client.post("/predict", json=QUERY) for _ in range(100)]
    assert {(answer.status_code, answer.headers["retry-after"]) for answer in answers} == {(503, "1")}
    assert {answer.text for answer in answers} <= {"first", "second"}
    for replica in replicas:
        replica.answer = FINE
    answers = [client.post("/predict", json=QUERY) for _ in range(20)]
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "first"), (200, "second")}


@pytest.fixture(scope="module")
def nginx_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of nginx whose replicas are down."""
    with nginx_in_front_of(tmp_path_factory.mktemp("alone"), free_address(), free_address()) as url:
        yield url


def test_clients_get_503_with_retry_after_if_all_replicas_are_down(nginx_alone: str) -> None:
    for _ in range(5):
        is_problem(httpx.post(f"{nginx_alone}/predict", json=QUERY), 503, "not_ready")


def test_web_pages_of_other_origins_can_read_the_errors_of_nginx(
    client: httpx.Client, replicas: Replicas, nginx_alone: str
) -> None:
    page, name = {"Origin": "https://shop.example"}, "access-control-allow-origin"
    large = {"content": b"x" * (MAX_BODY_BYTES + 1)}
    errors = [
        client.post("/predict", headers=page, **large),
        client.get("/metrics", headers=page),
        client.get("/version", headers={**page, "X-Long": "x" * 10_000}),
        client.get("/" + "x" * 10_000, headers=page),
        httpx.post(f"{nginx_alone}/predict", json=QUERY, headers=page),
    ]
    assert [error.status_code for error in errors] == [413, 404, 431, 414, 503]
    assert {tuple(error.headers.get_list(name)) for error in errors} == {("*",)}
    assert all("X-Request-Id" in error.headers["access-control-expose-headers"] for error in errors)
    replicas[0].answer = replicas[1].answer = (200, {name: "https://shop.example"})
    answer = client.get("/version", headers=page)
    assert answer.headers.get_list(name) == ["https://shop.example"]  # that of the service alone


@pytest.mark.parametrize("given", ["abc-123", "!~" * 64, None, "", "with blanks", "x" * 129])
def test_request_id_that_is_valid_is_kept_and_another_one_is_replaced(
    client: httpx.Client, replicas: Replicas, given: str | None
) -> None:
    answer = client.get("/version", headers={} if given is None else {"X-Request-Id": given})
    (returned,) = answer.headers.get_list("x-request-id")
    assert returned == given if given in ("abc-123", "!~" * 64) else len(returned) == 32
    assert [headers["x-request-id"] for _, headers, _ in requests_to(replicas)] == [returned]


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/metrics/", "//metrics", "/%6detrics", "/labels/../metrics", "/labels/..%2fmetrics", "/metrics?x=1"]
    + ["/versions", "/versions/rollback", "/versions/../versions/v1/activate", "/./versions"],
)
def test_metrics_and_paths_for_operators_are_not_forwarded(client: httpx.Client, replicas: Replicas, path: str) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())  # a client library would normalise the path
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 404 ")
    assert json.loads(answer.partition("\r\n\r\n")[2])["code"] == "not_found"
    assert not requests_to(replicas)


def test_body_of_the_maximum_size_is_forwarded_and_a_larger_body_is_refused(
    client: httpx.Client, replicas: Replicas
) -> None:
    assert client.post("/predict", content=b"x" * MAX_BODY_BYTES).status_code == 200
    assert [len(body) for _, _, body in requests_to(replicas)] == [MAX_BODY_BYTES]
    is_problem(client.post("/predict", content=b"x" * (MAX_BODY_BYTES + 1)), 413, "too_large")
    assert len(requests_to(replicas)) == 1


LARGE_HEAD = "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH, CHUNKED = (
    f"Content-Length: {MAX_BODY_BYTES}\r\n\r\n",
    f"Transfer-Encoding: chunked\r\n\r\n{MAX_BODY_BYTES:x}\r\n",
)


def hold_bodies(
    client: httpx.Client, stack: contextlib.ExitStack, count: int, start: str, sources: Sequence[int], refused: int
) -> None:
    """Send `count` bodies without their ends from each 127.0.0.`source`, which stay open; nginx refuses so many."""
    address = client.base_url.host, client.base_url.port or 0
    opened = [
        stack.enter_context(socket.create_connection(address, PATIENCE_SECONDS, (f"127.0.0.{source}", 0)))
        for source in sources
        for _ in range(count)
    ]
    for connection in opened:
        connection.sendall((LARGE_HEAD + start).encode())
    until(lambda: len(select.select(opened, [], [], 0)[0]) >= refused)
    answered = select.select(opened, [], [], 0)[0]
    assert len(answered) == refused
    assert all(connection.recv(65_536).startswith(b"HTTP/1.1 429 ") for connection in answered)
    for connection in {*opened} - {*answered}:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"x" * (MAX_BODY_BYTES - 1))


@pytest.mark.parametrize(("start", "source"), [(LENGTH, 2), (CHUNKED, 3)], ids=["length", "chunked"])
def test_an_address_holds_sixteen_large_bodies_and_delays_no_other_address(
    client: httpx.Client, start: str, source: int
) -> None:
    with contextlib.ExitStack() as stack:
        hold_bodies(client, stack, 24, start, [source], refused=8)
        large = json.dumps({"query": "x" * 100_000}).encode()
        assert client.post("/predict", content=large).status_code == 200  # of 127.0.0.1
        from_source = httpx.HTTPTransport(local_address=f"127.0.0.{source}")
        with httpx.Client(base_url=client.base_url, transport=from_source) as same:
            assert same.post("/predict", json=QUERY).status_code == 200
            is_problem(same.post("/predict", content=large), 429, "too_many_requests")


def test_memory_of_nginx_fits_its_container(replicas: Replicas, tmp_path: Path) -> None:
    """All addresses together hold 128 large bodies: the sum of the comment in nginx.conf is less than mem_limit."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(nginx_in_front_of(tmp_path, *(replica.address for replica in replicas)))
        client = stack.enter_context(httpx.Client(base_url=url))
        hold_bodies(client, stack, 16, LENGTH, range(2, 12), refused=32)
        assert client.post("/predict", json=QUERY).status_code == 200
    conf = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")

    def number(pattern: str) -> int:
        (found,) = re.findall(rf"^\s*{pattern};", conf, re.MULTILINE)
        return int(found)

    heads = number(r"worker_processes (\d+)") * number(r"worker_connections (\d+)") * 33 * 1024
    bodies = number(r"limit_conn large_bodies (\d+)") * number(r"client_body_buffer_size (\d+)")
    answers = 16 * 1024 * (1 + number(r"proxy_buffers (\d+) 16k"))
    total = heads + bodies + number(r"limit_conn requests (\d+)") * (10_000 + answers)
    (said,) = re.findall(r"at most (\d+) MiB", conf)
    limit = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))["services"]["nginx"]["mem_limit"]
    assert total <= int(said) << 20 < int(limit.removesuffix("m")) << 20


def test_version_that_a_client_names_is_not_forwarded(client: httpx.Client, replicas: Replicas) -> None:
    for path in ("/predict", "/memory/labels"):
        client.post(path, headers={"X-Index-Version": "v1", "Idempotency-Key": "key"})
    assert {headers.get("x-index-version") for _, headers, _ in requests_to(replicas)} == {None}


def test_access_log_has_one_line_for_each_request_and_contains_no_queries(replicas: Replicas, tmp_path: Path) -> None:
    with nginx_in_front_of(tmp_path, *(replica.address for replica in replicas)) as url:
        httpx.post(f"{url}/predict?a=secret", json=QUERY, headers={"X-Request-Id": "known"})
    (line,) = (tmp_path / "access").read_text().splitlines()
    assert "secret" not in line
    assert QUERY["query"] not in line
    event = json.loads(line)
    assert (event["request_id"], event["path"], event["status"]) == ("known", "/predict", 200)
    assert event["replicas"] in {replica.address for replica in replicas}


@pytest.fixture(scope="module")
def stores(built: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Create two stores with one bundle under two version names, so that an answer identifies its replica."""

    def store(version: str) -> Path:
        folder = copy_store(built.store, tmp_path_factory.mktemp("nginx") / version)
        add_version(folder, built.version, version, light_encoder)
        make_first(folder, version)
        return folder

    return store("v1"), store("v2")


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_no_request_fails_while_a_replica_restarts(
    stores: tuple[Path, Path], tmp_path: Path, stop: signal.Signals
) -> None:
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(serving(store)) for store in stores)
        url = stack.enter_context(nginx_in_front_of(tmp_path, address(first), address(second)))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=60))

        def ask() -> tuple[str, str]:
            answer = client.post("/predict", json=QUERY)
            return answer.json().get("version", ""), "" if answer.status_code == 200 else answer.text

        with Load(ask) as load:
            load.wait_for(50, of="v1")
            load.wait_for(50, of="v2")
            first.process.send_signal(stop)
            first.process.wait()
            load.wait_for(200, of="v2")
            stack.enter_context(serving(stores[0], "--port", address(first).partition(":")[2]))
            load.wait_for(50, of="v1")
    assert not load.wrong


def address(server: Server) -> str:
    return server.url.removeprefix("http://")


HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 18\r\n"
BODY = b'{"query": "bread"}'


@pytest.fixture(scope="module")
def proxy(stores: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of nginx in front of the service, with a tenth of the shipped time limits of clients."""
    folder, listen = tmp_path_factory.mktemp("proxy"), free_address()
    with serving(stores[0]) as server:
        conf = write_nginx_conf(folder, listen, (address(server), address(server)))
        shipped = conf.read_text(encoding="utf-8")
        conf.write_text(re.sub(r"(client_header|client_body|send)_timeout 10s", r"\1_timeout 1s", shipped))
        with run_nginx(folder, conf, listen):
            host, port = listen.split(":")
            yield host, int(port)


def is_answered(address: tuple[str, int]) -> bool:
    return httpx.post(f"http://{address[0]}:{address[1]}/predict", json=QUERY).status_code == 200


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD] + [b"X-%d: %s\r\n" % (number, b"a" * 1_000) for number in range(32_000)],
        [HEAD, b"X: "] + [b"a" * 65_536] * 384,
    ],
    ids=["32 MB of headers", "a header of 24 MB"],
)
def test_endless_head_is_refused_before_it_reaches_the_service(proxy: tuple[str, int], parts: list[bytes]) -> None:
    answer = b""
    with socket.create_connection(proxy, timeout=PATIENCE_SECONDS) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(ConnectionError):
            while received := connection.recv(65_536):
                answer += received
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
    assert is_answered(proxy)


def test_client_that_sends_requests_and_reads_no_answer_is_disconnected(proxy: tuple[str, int]) -> None:
    requests = (HEAD + b"\r\n" + BODY) * 200_000
    with socket.create_connection(proxy, timeout=PATIENCE_SECONDS) as connection, pytest.raises(ConnectionError):
        connection.sendall(requests)
    assert is_answered(proxy)


@pytest.mark.parametrize(
    "sent", [b"", HEAD[:40], HEAD + b"\r\n" + BODY[:5]], ids=["nothing", "half a head", "half a body"]
)
def test_clients_that_do_not_finish_their_request_are_disconnected_and_delay_nobody(
    proxy: tuple[str, int], sent: bytes
) -> None:
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(proxy, PATIENCE_SECONDS, (f"127.0.0.{2 + number % 4}", 0)))
            for number in range(260)
        ]
        for connection in slow:
            connection.sendall(sent)
        assert is_answered(proxy)
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
