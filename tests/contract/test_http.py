"""Each route answers as `data/requests.json` says: status, headers and body as a client sees them.

A story is a list of requests that one client sends in turn. A request has:

- `send`: method and path; `json`, `form` or `text`: the body; `headers`; `key`: name of an API key.
- `times`: length to which the list `queries` is repeated. A text `REPEAT N` stands for a text of N characters.
- `status`, `body` (see `matching.py`), `has` (headers and the beginning or a part of their values), `contains` (a part
  of the body), `problem` (the code of a problem document).
- `keep`: names of fields of the answer that later requests of the story use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.conftest import Work
from tests.contract.matching import differences, filled
from tests.contract.servers import EDITOR, OPERATOR, READER, SLOW, serving
from tests.extras import needs_extra
from tests.processes import PATIENCE_SECONDS, Server, run, until

STORIES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "requests.json").read_text(encoding="utf-8"))
KEYS = {"READER": READER, "EDITOR": EDITOR, "SLOW": SLOW}


@pytest.mark.parametrize(
    "story", [pytest.param(each, marks=needs_extra("annif")) if each == "Annif" else each for each in STORIES]
)
def test_story(request: pytest.FixtureRequest, golden_version: str, story: str) -> None:
    server: Server = request.getfixturevalue(f"{STORIES[story]['server']}_server")
    values = {"VERSION": golden_version, **KEYS}
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
        for each in STORIES[story]["requests"]:
            response = send(client, filled(each, values))
            wrong = check(response, filled(each, values))
            assert not wrong, f"{each['send']}: {wrong}\n{response.status_code} {response.headers} {response.text}"
            for name, field in each.get("keep", {}).items():
                values[name] = response.json()[field]


def send(client: httpx.Client, request: dict[str, Any]) -> httpx.Response:
    method, path = request["send"].split(" ")
    headers = {"Content-Type": "application/json"} if "json" in request or "text" in request else {}
    headers |= request.get("headers", {})
    if "key" in request:
        headers["X-API-Key"] = KEYS[request["key"]] if request["key"] in KEYS else request["key"]
    if "form" in request:
        return client.request(method, path, data=request["form"], headers=headers)
    content = request.get("text")
    if "json" in request:
        body = repeated(request["json"])
        if "times" in request:
            body["queries"] *= request["times"]
        content = json.dumps(body)
    return client.request(method, path, content=content, headers=headers)


def repeated(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: repeated(each) for name, each in value.items()}
    if isinstance(value, list):
        return [repeated(each) for each in value]
    if isinstance(value, str) and value.startswith("REPEAT "):
        length = int(value.removeprefix("REPEAT "))
        return ("flour " * length)[:length]
    return value


def check(response: httpx.Response, expected: dict[str, Any]) -> list[str]:
    wrong = differences(response.status_code, expected["status"], "status")
    for name, part in expected.get("has", {}).items():
        if part not in response.headers.get(name, "" if part else "(missing)") or name not in response.headers:
            wrong.append(f"{name}: expected {part!r}, found {response.headers.get(name)!r}")
    if expected.get("contains", "") not in response.text:
        wrong.append(f"body: expected {expected['contains']!r}")
    if "x-request-id" not in response.headers:
        wrong.append("x-request-id: missing")
    if "problem" in expected:
        wrong += differences(response.headers["content-type"], "application/problem+json", "content-type")
        problem = {"type": "about:blank", "title": "<text>", "status": expected["status"], "detail": "<text>"}
        wrong += differences(response.json(), problem | {"code": expected["problem"]}, "problem")
        if expected["status"] in (429, 503) and int(response.headers.get("retry-after", 0)) < 1:
            wrong.append("retry-after: expected seconds")
    if "body" in expected:
        wrong += differences(response.json(), expected["body"], "body")
    return wrong


# ---- The interface as a whole ----


def test_openapi_describes_all_routes_that_a_client_uses(open_server: Server) -> None:
    paths = open_server.client.get("/openapi.json").json()["paths"]
    described = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    used = {
        "GET": ["/labels", "/labels/{uid}", "/version", "/health/live", "/health/ready", "/metrics", "/memory"],
        "POST": ["/predict", "/predict/batch", "/memory/labels", "/memory/instances", "/feedback"],
        "DELETE": ["/memory/instances/{uid}", "/memory/labels/{uid}", "/feedback/{uid}"],
    }
    assert {f"{method} {path}" for method, paths in used.items() for path in paths} < described
    assert "GET /memory/instances/{uid}" in described


@pytest.fixture
def restricted_server(store: Path) -> Iterator[Server]:
    flags = ("--docs", "off", "--metrics", "off", "--no-playground", "--max-batch", 2, "--max-query-bytes", 64)
    origins = ("--cors-origins", "https://a.example", "--delta-keys", 1, "--cache-mb", 0, "--workers", 2)
    with serving(store, *flags, *origins) as server:
        yield server


def test_settings_close_routes_and_lower_limits(restricted_server: Server) -> None:
    client = restricted_server.client
    for path in ("/docs", "/openapi.json", "/metrics", "/"):
        assert client.get(path).status_code == 404
    assert client.post("/predict/batch", json={"queries": ["flour"] * 3}).json()["code"] == "batch_too_large"
    assert restricted_server.ask("flour " * 20).json()["code"] == "query_too_large"
    allowed = client.post("/predict", json={"query": "flour"}, headers={"Origin": "https://a.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    other = client.post("/predict", json={"query": "flour"}, headers={"Origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
    assert restricted_server.put_label("one", "one").status_code == 200
    full = restricted_server.put_label("two", "two")
    assert (full.status_code, full.json()["code"]) == (507, "memory_full")


def test_requests_beyond_the_queue_get_503_and_all_others_an_answer(guarded_server: Server) -> None:
    def ask(number: int) -> httpx.Response:
        queries = [f"flour {number} {each}" for each in range(60)]
        return guarded_server.client.post("/predict/batch", json={"queries": queries})

    with ThreadPoolExecutor(16) as threads:
        responses = list(threads.map(ask, range(48)))
    refused = [each for each in responses if each.status_code != 200]
    assert 0 < len(refused) < len(responses)
    assert all((each.status_code, each.json()["code"]) == (503, "overloaded") for each in refused)
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)


# ---- Versions over HTTP ----


def test_header_selects_an_open_version_and_keys_that_operate_change_what_is_open(
    work: Work, two_versions: Path, tmp_path: Path
) -> None:
    first, second = work.first, work.second
    with serving(two_versions) as server:
        operator = {"X-API-Key": OPERATOR}

        def ask(version: str) -> httpx.Response:
            return server.client.post("/predict", json={"query": "flour"}, headers={"X-Index-Version": version})

        def post(path: str) -> dict[str, Any]:
            response = server.client.post(path, headers=operator)
            assert response.status_code == 200, response.text
            return dict(response.json())

        closed = ask(second)
        assert (closed.status_code, closed.json()["code"]) == (409, "version_not_open")
        assert closed.json()["open_versions"] == [first]
        opened = post(f"/versions/{second}/activate?candidate=true&why=trial")
        assert (opened["current"], opened["candidate"]) == (first, second)
        until(lambda: ask(second).status_code == 200)
        assert {ask(each).headers["x-index-version"] for each in (first, second)} == {first, second}
        queries, headers = {"queries": ["flour", "oven"]}, {"X-Index-Version": second}
        batch = server.client.post("/predict/batch", json=queries, headers=headers)
        assert (batch.status_code, batch.json()["version"]) == (200, second)
        assert server.ask("flour").json()["version"] == server.version() == first

        assert post(f"/versions/{second}/activate")["current"] == second
        until(lambda: server.version() == second)
        assert ask(first).status_code == 200  # it stays open, so that a rollback is quick
        listed = server.client.get("/versions", headers=operator).json()
        assert (listed["current"], {row["version"] for row in listed["versions"]}) == (second, {first, second})
        assert post("/versions/rollback")["current"] == first
        until(lambda: server.version() == first)
        assert "operator (API key)" in run("log", "--store", two_versions).stdout

        unknown = server.client.post("/versions/no-such-version/activate", headers=operator)
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_version")
        for method, path in (("GET", "/versions"), ("POST", "/versions/rollback")):
            assert server.client.request(method, path).json()["code"] == "no_operate_scope"
            assert httpx.request(method, f"{server.url}{path}", trust_env=False).status_code == 401


def test_versions_have_no_routes_without_api_keys(open_server: Server) -> None:
    assert open_server.client.get("/versions").status_code == 404
    assert open_server.client.post("/versions/rollback").status_code == 404
