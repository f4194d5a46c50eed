"""Runs a real nginx with deploy/nginx.conf, in front of fake replicas and of real replicas."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from collections.abc import Iterable, Iterator
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
    Load,
    free_address,
    nginx_in_front_of,
    run_nginx,
    write_nginx_conf,
)
from tests.processes import PATIENCE_SECONDS, Server, copy_store, serving
from tests.service.stores import add_version, light_encoder, make_first

QUERY = {"query": "How doctors treat high blood pressure"}
MAX_BODY_BYTES = ServeSettings.model_fields["max_body_bytes"].default

Replicas = tuple[FakeReplica, FakeReplica]


@pytest.fixture
def replicas() -> Iterator[Replicas]:
    with FakeReplica("first") as first, FakeReplica("second") as second:
        yield first, second


@pytest.fixture
def client(replicas: Replicas, tmp_path: Path) -> Iterator[httpx.Client]:
    first, second = replicas
    with nginx_in_front_of(tmp_path, first.address, second.address) as url, httpx.Client(base_url=url) as client:
        yield client


def is_problem(response: httpx.Response, status: int, code: str) -> None:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem = response.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, "about:blank")
    assert problem["detail"]
    assert response.headers["x-request-id"]
    assert ("retry-after" in response.headers) == (status in (429, 503))


def requests_to(replicas: Replicas) -> list[tuple[str, dict[str, str], bytes]]:
    return [request for replica in replicas for request in replica.requests]


def test_nginx_sends_requests_to_both_replicas_over_persistent_connections(
    client: httpx.Client, replicas: Replicas
) -> None:
    assert {client.post("/predict", json=QUERY).text for _ in range(40)} == {"first", "second"}
    assert [replica.connections for replica in replicas] == [1, 1]


def test_post_request_that_one_replica_refuses_is_sent_to_the_other_replica(
    client: httpx.Client, replicas: Replicas
) -> None:
    replicas[0].answer = OVERLOADED
    body = json.dumps({"query": "x" * 100_000}).encode()
    answers = [client.post("/predict", content=body) for _ in range(20)]
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "second")}
    assert replicas[0].requests
    assert {request[2] for request in requests_to(replicas)} == {body}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/memory/instances"),
        ("POST", "/memory/labels"),
        ("POST", "/feedback"),
        ("POST", "/v1/projects/recollect/learn"),
        ("DELETE", "/memory/instances/a/b"),
        ("DELETE", "/memory/labels/a"),
        ("DELETE", "/feedback/feedback-1"),
    ],
)
def test_write_is_sent_to_one_replica_only(client: httpx.Client, replicas: Replicas, method: str, path: str) -> None:
    replicas[0].answer = OVERLOADED
    statuses = {client.request(method, path).status_code for _ in range(20)}
    assert statuses == {200, 503}
    assert len(requests_to(replicas)) == 20


@pytest.mark.parametrize(("method", "path"), [("POST", "/memory/labels"), ("DELETE", "/memory/instances/a/b")])
def test_write_with_a_key_is_sent_to_the_other_replica(
    client: httpx.Client, replicas: Replicas, method: str, path: str
) -> None:
    replicas[0].answer = OVERLOADED
    body = json.dumps({"labels": ["x" * 10_000]}).encode() if method == "POST" else b""
    headers = {"Idempotency-Key": "key"}
    answers = [client.request(method, path, content=body, headers=headers) for _ in range(20)]
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "second")}
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


def test_clients_get_503_with_retry_after_if_all_replicas_are_down(tmp_path: Path) -> None:
    with nginx_in_front_of(tmp_path, free_address(), free_address()) as url:
        for _ in range(5):
            is_problem(httpx.post(f"{url}/predict", json=QUERY), 503, "not_ready")


def test_web_pages_of_other_origins_can_read_the_errors_of_nginx(
    client: httpx.Client, replicas: Replicas, tmp_path: Path
) -> None:
    page, name = {"Origin": "https://shop.example"}, "access-control-allow-origin"
    large = {"content": b"x" * (MAX_BODY_BYTES + 1)}
    errors = [
        client.post("/predict", headers=page, **large),
        client.get("/metrics", headers=page),
        client.get("/version", headers={**page, "X-Long": "x" * 10_000}),
        client.get("/" + "x" * 10_000, headers=page),
    ]
    assert [error.status_code for error in errors] == [413, 404, 431, 414]
    (tmp_path / "down").mkdir()
    with nginx_in_front_of(tmp_path / "down", free_address(), free_address()) as url:
        errors.append(httpx.post(f"{url}/predict", json=QUERY, headers=page))
    assert errors[-1].status_code == 503
    assert {tuple(error.headers.get_list(name)) for error in errors} == {("*",)}
    assert all("X-Request-Id" in error.headers["access-control-expose-headers"] for error in errors)
    replicas[0].answer = replicas[1].answer = (200, {name: "https://shop.example"})
    answer = client.get("/version", headers=page)
    assert answer.headers.get_list(name) == ["https://shop.example"]  # that of the service alone


@pytest.mark.parametrize("given", ["abc-123", "!~" * 64])
def test_valid_request_id_is_forwarded_to_the_replica_and_returned_to_the_client(
    client: httpx.Client, replicas: Replicas, given: str
) -> None:
    answer = client.get("/version", headers={"X-Request-Id": given})
    assert answer.headers.get_list("x-request-id") == [given]
    assert [headers["x-request-id"] for _, headers, _ in requests_to(replicas)] == [given]


@pytest.mark.parametrize("given", [None, "", "with blanks", "x" * 129])
def test_request_without_a_valid_request_id_gets_a_new_one(
    client: httpx.Client, replicas: Replicas, given: str | None
) -> None:
    answer = client.get("/version", headers={} if given is None else {"X-Request-Id": given})
    (created,) = answer.headers.get_list("x-request-id")
    assert len(created) == 32
    assert [headers["x-request-id"] for _, headers, _ in requests_to(replicas)] == [created]


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


def hold_bodies(client: httpx.Client, stack: contextlib.ExitStack, count: int, start: str, source: int) -> int:
    """Send bodies without their ends from 127.0.0.`source`, which stay open; return how many nginx refuses."""
    refused, held = 0, (client.base_url.host, client.base_url.port or 0)
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(held, PATIENCE_SECONDS, (f"127.0.0.{source}", 0)))
        connection.sendall((LARGE_HEAD + start).encode())
        connection.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 429 "), answer
            refused += 1
            continue
        connection.settimeout(PATIENCE_SECONDS)
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"x" * (MAX_BODY_BYTES - 1))
    return refused


@pytest.mark.parametrize("start", [LENGTH, CHUNKED], ids=["length", "chunked"])
def test_an_address_holds_sixteen_large_bodies_and_delays_no_other_address(
    client: httpx.Client, replicas: Replicas, start: str
) -> None:
    with contextlib.ExitStack() as stack:
        assert hold_bodies(client, stack, 24, start, source=2) == 8
        large = json.dumps({"query": "x" * 100_000}).encode()
        assert client.post("/predict", content=large).status_code == 200  # of 127.0.0.1
        with httpx.Client(base_url=client.base_url, transport=httpx.HTTPTransport(local_address="127.0.0.2")) as same:
            assert same.post("/predict", json=QUERY).status_code == 200
            is_problem(same.post("/predict", content=large), 429, "too_many_requests")


def test_memory_of_nginx_fits_its_container(client: httpx.Client) -> None:
    """All addresses together hold 128 large bodies: the sum of the comment in nginx.conf is less than mem_limit."""
    with contextlib.ExitStack() as stack:
        refused = [hold_bodies(client, stack, 16, LENGTH, source) for source in range(2, 12)]
        assert sum(refused) == 32
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


def test_version_that_a_client_names_is_not_forwarded_unless_configured(replicas: Replicas, tmp_path: Path) -> None:
    listen = free_address()
    conf = write_nginx_conf(tmp_path, listen, (replicas[0].address, replicas[1].address))
    shipped = conf.read_text(encoding="utf-8")
    forwarding = shipped.replace('X-Index-Version "";', "X-Index-Version $http_x_index_version;")
    assert forwarding != shipped
    for text, expected in ((shipped, None), (forwarding, "v1")):
        conf.write_text(text, encoding="utf-8")
        with run_nginx(tmp_path, conf, listen):
            for path in ("/predict", "/memory/labels"):
                httpx.post(f"http://{listen}{path}", headers={"X-Index-Version": "v1", "Idempotency-Key": "key"})
        found = {headers.get("x-index-version") for replica in replicas for _, headers, _ in replica.requests}
        assert found == {expected}
        for replica in replicas:
            replica.requests.clear()


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

        def send() -> tuple[int, str]:
            answer = client.post("/predict", json=QUERY)
            return answer.status_code, answer.json().get("version", answer.text)

        with Load(send) as load:
            load.wait_for(50, of="v1")
            load.wait_for(50, of="v2")
            first.process.send_signal(stop)
            first.process.wait()
            load.wait_for(200, of="v2")
            stack.enter_context(serving(stores[0], "--port", address(first).partition(":")[2]))
            load.wait_for(50, of="v1")
    assert not load.failures


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


def send_until_refused(address: tuple[str, int], parts: Iterable[bytes]) -> tuple[int, bytes]:
    """Send until the proxy refuses more; return the number of bytes that it took, and the beginning of its answer."""
    taken, answer = 0, b""
    with socket.create_connection(address, timeout=PATIENCE_SECONDS) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
                taken += len(part)
        with contextlib.suppress(ConnectionError):
            while received := connection.recv(65_536):
                answer = (answer + received)[:64]
    return taken, answer


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
    _, answer = send_until_refused(proxy, parts)
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
