"""The shipped nginx.conf in a real nginx: before stand-ins for what replicas may answer, and before real replicas."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import ServeSettings
from tests.deploy.helpers import (
    FINE,
    OVERLOADED,
    Load,
    StandIn,
    free_address,
    nginx_before,
    run_tool,
    write_nginx_conf,
)
from tests.service.http_helpers import Server, add_version, copy_store, light_encoder, serving

QUERY = {"query": "How doctors treat high blood pressure"}
MOST_BODY_BYTES = ServeSettings.model_fields["max_body_bytes"].default

Replicas = tuple[StandIn, StandIn]


@pytest.fixture
def replicas() -> Iterator[Replicas]:
    with StandIn("first") as first, StandIn("second") as second:
        yield first, second


@pytest.fixture
def client(replicas: Replicas, tmp_path: Path) -> Iterator[httpx.Client]:
    first, second = replicas
    with nginx_before(tmp_path, first.address, second.address) as url, httpx.Client(base_url=url) as client:
        yield client


def is_problem(response: httpx.Response, status: int, code: str) -> None:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem = response.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, "about:blank")
    assert problem["detail"]
    assert response.headers["x-request-id"]
    assert ("retry-after" in response.headers) == (status == 503)


def asked(replicas: Replicas) -> list[tuple[str, dict[str, str], bytes]]:
    return [request for replica in replicas for request in replica.asked]


def test_nginx_finds_no_fault_with_its_configuration(tmp_path: Path) -> None:
    conf = write_nginx_conf(tmp_path, "127.0.0.1:8080", ("127.0.0.1:8001", "127.0.0.1:8002"))
    run_tool("nginx", "-e", "stderr", "-p", tmp_path, "-t", "-c", conf)


def test_both_replicas_are_asked_over_connections_that_are_kept(client: httpx.Client, replicas: Replicas) -> None:
    assert {client.post("/predict", json=QUERY).text for _ in range(40)} == {"first", "second"}
    assert [replica.connections for replica in replicas] == [1, 1]


def test_what_one_replica_refuses_another_answers_though_it_is_a_post(client: httpx.Client, replicas: Replicas) -> None:
    replicas[0].answer = OVERLOADED
    body = json.dumps({"query": "x" * 100_000}).encode()
    answers = [client.post("/predict", content=body) for _ in range(20)]
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, "second")}
    assert replicas[0].asked
    assert {request[2] for request in asked(replicas)} == {body}


def test_overload_of_all_is_told_in_their_own_words_and_leaves_none_out(
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


def test_without_any_replica_clients_are_told_to_come_again(tmp_path: Path) -> None:
    with nginx_before(tmp_path, free_address(), free_address()) as url:
        for _ in range(5):
            is_problem(httpx.post(f"{url}/predict", json=QUERY), 503, "not_ready")


def test_a_replica_that_was_gone_is_asked_as_soon_as_it_is_there(tmp_path: Path) -> None:
    address = free_address()
    with StandIn("first") as first, nginx_before(tmp_path, first.address, address) as url, httpx.Client() as client:
        answers = [client.post(f"{url}/predict", json=QUERY) for _ in range(20)]
        assert {(answer.status_code, answer.text) for answer in answers} == {(200, "first")}
        with StandIn("late", port=int(address.partition(":")[2])):
            assert {client.post(f"{url}/predict", json=QUERY).text for _ in range(20)} == {"first", "late"}
            client.close()


@pytest.mark.parametrize("given", ["abc-123", "!~" * 64])
def test_a_request_id_goes_through_and_comes_back(client: httpx.Client, replicas: Replicas, given: str) -> None:
    answer = client.get("/version", headers={"X-Request-Id": given})
    assert answer.headers.get_list("x-request-id") == [given]
    assert [headers["x-request-id"] for _, headers, _ in asked(replicas)] == [given]


@pytest.mark.parametrize("given", [None, "", "with blanks", "x" * 129])
def test_a_request_without_a_usable_id_is_given_one(
    client: httpx.Client, replicas: Replicas, given: str | None
) -> None:
    answer = client.get("/version", headers={} if given is None else {"X-Request-Id": given})
    (made,) = answer.headers.get_list("x-request-id")
    assert len(made) == 32
    assert [headers["x-request-id"] for _, headers, _ in asked(replicas)] == [made]


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/metrics/", "//metrics", "/%6detrics", "/labels/../metrics", "/labels/..%2fmetrics", "/metrics?x=1"]
    + ["/admin", "/admin/status", "/admin/../admin/settings", "/./admin/activate"],
)
def test_what_is_for_operators_is_out_of_reach(client: httpx.Client, replicas: Replicas, path: str) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())  # as it is: a client library would tidy it up
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 404 ")
    assert json.loads(answer.partition("\r\n\r\n")[2])["code"] == "not_found"
    assert not asked(replicas)


def test_a_label_of_many_slashes_is_asked_for_as_it_was_written(client: httpx.Client, replicas: Replicas) -> None:
    assert client.get("/labels/a%2Fb%2F%2Fc%3Fx").status_code == 200
    assert [path for path, _, _ in asked(replicas)] == ["/labels/a%2Fb%2F%2Fc%3Fx"]


def test_the_largest_body_that_the_service_takes_goes_through_and_no_larger_one(
    client: httpx.Client, replicas: Replicas
) -> None:
    assert client.post("/predict", content=b"x" * MOST_BODY_BYTES).status_code == 200
    assert [len(body) for _, _, body in asked(replicas)] == [MOST_BODY_BYTES]
    is_problem(client.post("/predict", content=b"x" * (MOST_BODY_BYTES + 1)), 413, "too_large")
    assert len(asked(replicas)) == 1


def test_an_endless_header_is_refused(client: httpx.Client, replicas: Replicas) -> None:
    is_problem(client.get("/version", headers={"X-Long": "x" * 100_000}), 431, "head_too_large")
    assert not asked(replicas)


def test_a_line_is_logged_for_each_request_without_what_was_asked(replicas: Replicas, tmp_path: Path) -> None:
    with nginx_before(tmp_path, *(replica.address for replica in replicas)) as url:
        httpx.post(f"{url}/predict?a=secret", json=QUERY, headers={"X-Request-Id": "known"})
    (line,) = (tmp_path / "access").read_text().splitlines()
    assert "secret" not in line
    assert QUERY["query"] not in line
    event = json.loads(line)
    assert (event["request_id"], event["path"], event["status"]) == ("known", "/predict", 200)
    assert event["replicas"] in {replica.address for replica in replicas}


@pytest.fixture(scope="module")
def stores(road: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two stores with the same bundle under two names, so that an answer tells which replica gave it."""

    def store(version: str) -> Path:
        folder = copy_store(road.store, tmp_path_factory.mktemp("nginx") / version)
        add_version(folder, road.version, version, light_encoder)
        (folder / "CURRENT").write_text(f"{version}\n")
        return folder

    return store("v1"), store("v2")


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_no_request_fails_while_a_replica_is_stopped_and_started_again(
    stores: tuple[Path, Path], tmp_path: Path, stop: signal.Signals
) -> None:
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(serving(store)) for store in stores)
        url = stack.enter_context(nginx_before(tmp_path, address(first), address(second)))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=60))

        def ask() -> tuple[int, str]:
            answer = client.post("/predict", json=QUERY)
            return answer.status_code, answer.json().get("version", answer.text)

        with Load(ask) as load:
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
