"""The public HTTP interface of a real server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.processes import Server, copy_store, serving
from tests.service.stores import add_version, make_first, relabel

QUERY = "How doctors treat high blood pressure"
# Uids of the bundle's labels, in the order of the labels. Some uids contain characters that must be escaped in a URL.
UIDS = ["Taxation", "Medicine", "a/b//c", "q?x=1&y#z %41", "Football", "音楽", "Law", "Never seen"]


@pytest.fixture(scope="session")
def server(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = copy_store(built.store, tmp_path_factory.mktemp("http") / "store")
    add_version(store, built.version, "v1", relabel(UIDS))
    make_first(store, "v1")
    with serving(store, "--poll-seconds", "3600", RECOLLECT_MAX_BACH="3") as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, headers={"Content-Type": "application/json"}) as client:
        yield client


def is_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem: dict[str, Any] = response.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, "about:blank"), problem
    assert problem["title"]
    assert problem["detail"]
    assert response.headers["x-request-id"]
    assert ("retry-after" in response.headers) == (status == 503)
    return problem


def test_server_timing_header_lists_the_stages_of_a_request(client: httpx.Client) -> None:
    def stages() -> dict[str, float]:
        header = client.post("/predict", json={"query": "asked here alone"}).headers["server-timing"].split(", ")
        return {stage: float(spent) for stage, spent in (each.split(";dur=") for each in header)}

    computed, cached = stages(), stages()
    assert list(computed) == ["queue", "tokenize", "encode", "search", "combine"]
    assert list(cached) == ["cache"]
    assert min([*computed.values(), *cached.values()]) >= 0


def test_head_and_body_of_an_answer_arrive_together(server: Server) -> None:
    """So a proxy never has half of the answer of a process that is killed."""
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port)) as client:
        client.setblocking(False)
        for _ in range(100):
            client.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while True:
                try:
                    answer = client.recv(1 << 16)
                except BlockingIOError:
                    continue
                break
            head, _, body = answer.partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}\r\n".encode() in head + b"\r\n"


@pytest.mark.parametrize("given", [None, "", "has space", "x" * 129, "é"])
def test_response_has_a_new_request_id_if_the_client_sends_none_or_a_malformed_one(
    client: httpx.Client, given: str | None
) -> None:
    headers = {} if given is None else {"X-Request-Id": given.encode()}
    generated = client.get("/version", headers=headers).headers.get_list("x-request-id")  # type: ignore[arg-type]
    assert len(generated) == 1
    assert len(generated[0]) == 32
    assert generated[0] != given


def test_request_with_filters_as_long_as_the_body_limit_is_answered(client: httpx.Client) -> None:
    unknown = [f"{number:06}" for number in range(99_990)]
    allowed = client.post("/predict", json={"query": QUERY, "allow": [*unknown, "Law", "Law"]})
    assert [label["uid"] for label in allowed.json()["labels"]] == ["Law"]
    denied = client.post("/predict", json={"query": QUERY, "deny": [*unknown, "Medicine"]})
    assert len(denied.json()["labels"]) == 7


@pytest.mark.parametrize("uid", UIDS)
def test_label_path_finds_uids_that_need_escaping(client: httpx.Client, uid: str) -> None:
    response = client.get(f"/labels/{quote(uid, safe='')}")
    count = {"Never seen": 0, "Law": 6}.get(uid, 4)
    assert list(response.json()) == ["version", "uid", "text", "training_count"]
    assert (response.json()["uid"], response.json()["training_count"]) == (uid, count)


def test_openapi_document_describes_every_error_as_a_problem(client: httpx.Client) -> None:
    assert client.get("/docs").status_code == 200
    described = client.get("/openapi.json").json()
    assert "Problem" in described["components"]["schemas"]
    reference = {"schema": {"$ref": "#/components/schemas/Problem"}}
    statuses = {}
    for path, methods in described["paths"].items():
        for operation in methods.values():
            errors = {status: answer for status, answer in operation["responses"].items() if status >= "4"}
            assert all(answer["content"] == {"application/problem+json": reference} for answer in errors.values()), path
            statuses[path] = sorted(errors)
    assert statuses["/predict"] == statuses["/predict/batch"] == ["409", "413", "415", "422", "503", "504"]
    assert statuses["/labels/{uid}"] == ["404", "503"]
    assert "HTTPValidationError" not in json.dumps(described)


@pytest.mark.parametrize("query", ["\ud83d", "ok \udc00"])
def test_query_with_half_of_a_surrogate_pair_is_refused(client: httpx.Client, query: str) -> None:
    problem = is_problem(client.post("/predict", content=json.dumps({"query": query})), 422, "invalid_request")
    assert problem["detail"].startswith("body: expected JSON: ")


def test_warning_names_a_misspelled_environment_variable(server: Server) -> None:
    assert [event["name"] for event in server.events("unknown_environment_variable")] == ["RECOLLECT_MAX_BACH"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"query": QUERY, "allow": [1.5] * 10_000}),
        ("/predict", {"query": QUERY, "deny": [None] * 10_000}),
        ("/predict/batch", {"queries": [""] * 10_000}),
    ],
)
def test_validation_of_a_list_stops_at_its_first_wrong_entry(client: httpx.Client, path: str, body: Any) -> None:
    (error,) = is_problem(client.post(path, json=body), 422, "invalid_request")["errors"]
    assert error["field"].endswith(".0")


def test_problem_details_stay_small_if_a_request_has_many_errors(client: httpx.Client) -> None:
    wrong = {f"{number}" + "x" * 500: 1 for number in range(900)}
    response = client.post("/predict", json={"query": QUERY, **wrong})
    assert len(is_problem(response, 422, "invalid_request")["errors"]) == 10
    assert len(response.content) < 5_000


def test_service_without_keys_answers_no_page_of_another_site(client: httpx.Client, server: Server) -> None:
    """A page of another site can let its own name point to this machine (DNS rebinding)."""
    port = httpx.URL(server.url).port
    for path in ("/version", "/labels?search=a", "/", "/metrics", "/openapi.json"):
        response = client.get(path, headers={"Host": f"attacker.example:{port}"})
        assert "attacker.example" in is_problem(response, 421, "unknown_host")["detail"], path
    for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1", "[::1]:80"):
        assert client.get("/version", headers={"Host": host}).status_code == 200, host
    assert client.get("/health/live", headers={"Host": "10.0.0.7"}).status_code == 200
    assert client.get("/version").headers["x-content-type-options"] == "nosniff"


def test_service_answers_the_names_of_allowed_hosts(light_versions: Path) -> None:
    with serving(light_versions, "--allowed-hosts", "search.example, [::1]") as server:
        hosts = {"Search.Example:8000": 200, "[::1]:8000": 200, "localhost": 421, "search.example.attacker": 421}
        found = {host: server.client.get("/version", headers={"Host": host}).status_code for host in hosts}
        assert found == hosts


def test_requests_that_wait_for_a_change_have_a_limit(light_versions: Path) -> None:
    async def ask(url: str) -> list[int]:
        async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=300), timeout=60) as client:
            body = {"query": "bread", "min_sequence": 10**12}
            answers = await asyncio.gather(*(client.post("/predict", json=body) for _ in range(300)))
            return [answer.status_code for answer in answers]

    with serving(light_versions) as server:
        statuses = asyncio.run(ask(server.url))
        assert set(statuses) == {409, 503}
        assert server.ask("bread").status_code == 200
