"""The public HTTP interface of a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.processes import Server, copy_store, is_problem, serving
from tests.service.stores import add_version, make_first, relabel

QUERY = "How doctors treat high blood pressure"
# Uids of the bundle's labels, in the order of the labels. Some uids contain characters that must be escaped in a URL.
UIDS = ["Taxation", "Medicine", "a/b//c", "q?x=1&y#z %41", "Football", "音楽", "Law", "Never seen"]

FEW_WAIT = "from recollect.service.serving import answering\nanswering._MAX_WAITING = 4\n"


@pytest.fixture(scope="session")
def server(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = copy_store(built.store, tmp_path_factory.mktemp("http") / "store")
    add_version(store, built.version, "v1", relabel(UIDS))
    make_first(store, "v1")
    with serving(store, "--poll-seconds", "3600", prelude=FEW_WAIT, RECOLLECT_MAX_BACH="3") as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, headers={"Content-Type": "application/json"}) as client:
        yield client


def test_server_timing_header_lists_the_stages_of_a_request(client: httpx.Client) -> None:
    for expected in (["queue", "tokenize", "encode", "search", "combine"], ["cache"]):
        header = client.post("/predict", json={"query": "asked here alone"}).headers["server-timing"]
        stages = {stage: float(spent) for stage, spent in (each.split(";dur=") for each in header.split(", "))}
        assert list(stages) == expected
        assert min(stages.values()) >= 0


def test_head_and_body_of_an_answer_arrive_together(server: Server) -> None:
    """So a proxy never has half of the answer of a process that is killed."""
    with server.connect() as client:
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


def test_response_has_a_new_request_id_if_the_client_sends_none_or_a_malformed_one(client: httpx.Client) -> None:
    malformed: list[Any] = [{"X-Request-Id": given.encode()} for given in ("", "has space", "x" * 129, "é")]
    for headers in ({}, *malformed):
        (generated,) = client.get("/version", headers=headers).headers.get_list("x-request-id")
        assert len(generated) == 32


def test_request_with_filters_as_long_as_the_body_limit_is_answered(client: httpx.Client) -> None:
    unknown = [f"{number:06}" for number in range(99_990)]
    allowed = client.post("/predict", json={"query": QUERY, "allow": [*unknown, "Law", "Law"]})
    assert [label["uid"] for label in allowed.json()["labels"]] == ["Law"]
    denied = client.post("/predict", json={"query": QUERY, "deny": [*unknown, "Medicine"]})
    assert len(denied.json()["labels"]) == 7


def test_label_path_finds_uids_that_need_escaping(client: httpx.Client) -> None:
    for uid in UIDS:
        found = client.get(f"/labels/{quote(uid, safe='')}").json()
        assert {*found} == {"version", "uid", "name", "text", "training_count"}
        assert (found["uid"], found["training_count"]) == (uid, {"Never seen": 0, "Law": 6}.get(uid, 4))


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


def test_query_with_half_of_a_surrogate_pair_is_refused(client: httpx.Client) -> None:
    for query in ("\ud83d", "ok \udc00"):
        problem = is_problem(client.post("/predict", content=json.dumps({"query": query})), 422, "invalid_request")
        assert problem["detail"].startswith("body: expected JSON: ")


def test_body_with_the_encoding_identity_is_accepted(client: httpx.Client) -> None:
    for encoding in ("identity", "Identity", ""):
        headers = {"Content-Encoding": encoding}
        assert client.post("/predict", content=b'{"query": "bread"}', headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path", ["/health/live", "/health/ready", "/version", "/labels/Law", "/metrics", "/docs", "/openapi.json"]
)
def test_head_has_the_status_and_the_headers_of_get_without_a_body(client: httpx.Client, path: str) -> None:
    changing = {"date", "x-request-id"} | ({"content-length"} if path == "/metrics" else set())
    got, head = client.get(path), client.head(path)
    assert (head.status_code, got.status_code, head.content) == (200, 200, b"")
    one, other = ({name: each.headers[name] for name in {*each.headers} - changing} for each in (got, head))
    assert one == other
    assert int(head.headers["content-length"]) > 0


def test_warning_names_a_misspelled_environment_variable(server: Server) -> None:
    assert [event["name"] for event in server.events("unknown_environment_variable")] == ["RECOLLECT_MAX_BACH"]


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


def test_requests_that_wait_for_a_change_have_a_limit(server: Server) -> None:
    async def ask() -> set[int]:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=60) as client:
            body = {"query": "bread", "min_sequence": 10**12}
            answers = await asyncio.gather(*(client.post("/predict", json=body) for _ in range(40)))
            return {answer.status_code for answer in answers}

    assert asyncio.run(ask()) == {409, 503}
    assert server.ask("bread").status_code == 200
