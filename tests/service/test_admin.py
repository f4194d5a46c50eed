"""The admin interface on its own port, and its access control."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.http_helpers import PATIENCE_SECONDS, Server, flip_bit, serving

TOKEN = "an-operators-own-token"


def admin_client(server: Server, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=server.wait_for("serving")["admin"], timeout=PATIENCE_SECONDS, headers=headers)


@pytest.fixture
def admin(store: Path) -> Iterator[httpx.Client]:
    with serving(store, "--admin-port", "0", "--poll-seconds", "0.05") as server, admin_client(server) as client:
        yield client


@pytest.fixture(scope="module")
def shared_admin(light_versions: Path) -> Iterator[httpx.Client]:
    """The admin interface of a server for all tests that change nothing."""
    with serving(light_versions, "--admin-port", "0") as server, admin_client(server) as client:
        yield client


def is_refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem: dict[str, Any] = response.json()
    assert (problem["status"], problem["code"]) == (status, code)
    return problem


def test_admin_lists_all_versions_and_the_problem_of_each_broken_version(admin: httpx.Client, store: Path) -> None:
    (store / "bundles" / "v5" / "manifest.json").write_text("{}")
    listed = admin.get("/admin/versions").json()
    assert (listed["current"], listed["generation"]) == ("v3", 1)
    rows = {row["version"]: row for row in listed["versions"]}
    assert rows["v3"]["current"] is True
    assert rows["v3"]["size_bytes"] > 0
    assert "manifest.json" in rows["v5"]["problem"]


def test_admin_activation_waits_until_every_replica_serves_the_version_and_rollback_undoes_it(
    admin: httpx.Client,
) -> None:
    switched = admin.post("/admin/activate", json={"version": "v5", "wait_seconds": PATIENCE_SECONDS}).json()
    assert switched["version"] == "v5"
    assert [replica["version"] for replica in switched["replicas"]] == ["v5"]
    status = admin.get("/admin/status").json()
    assert (status["current"], status["generation"]) == ("v5", 2)
    assert [(replica["state"], replica["generation"]) for replica in status["replicas"]] == [("serving", 2)]
    assert admin.post("/admin/rollback", json={"wait_seconds": PATIENCE_SECONDS}).json()["version"] == "v3"
    again = admin.post("/admin/activate", json={"version": "v5", "by": "ann@host", "why": "fixed"}).json()
    assert again == {"version": "v5", "generation": 4, "canary": None, "replicas": None}
    log = admin.get("/admin/log").json()["log"]
    assert [(entry["generation"], entry["from"], entry["to"]) for entry in log] == [
        (1, None, "v3"),
        (2, "v3", "v5"),
        (3, "v5", "v3"),
        (4, "v3", "v5"),
    ]
    assert (log[1]["by"], log[3]["by"]) == ("admin API, 127.0.0.1", "ann@host (admin API, 127.0.0.1)")
    assert log[3]["why"] == "fixed"


def test_admin_activation_waits_for_the_number_of_replicas_in_the_request(admin: httpx.Client) -> None:
    activation = {"version": "v5", "wait_seconds": PATIENCE_SECONDS, "replicas": 1}
    assert len(admin.post("/admin/activate", json=activation).json()["replicas"]) == 1
    impatient = activation | {"wait_seconds": 0.2, "replicas": 2}
    problem = is_refused(admin.post("/admin/activate", json=impatient), 504, "not_served")
    assert "of 2 replicas do not serve it" in problem["detail"]
    assert "only 1 of 2 replicas report" in problem["detail"]


def test_admin_activation_of_a_refused_version_returns_the_reason(admin: httpx.Client, store: Path) -> None:
    flip_bit(store / "bundles" / "v5" / "label_keys.faiss")
    activation = {"version": "v5", "wait_seconds": PATIENCE_SECONDS}
    problem = is_refused(admin.post("/admin/activate", json=activation), 504, "not_served")
    assert "serves v3" in problem["detail"]
    assert "label_keys.faiss" in problem["detail"]
    assert admin.get("/admin/status", headers={"X-Request-Id": "r-1"}).headers["x-request-id"] == "r-1"
    (replica,) = admin.get("/admin/status").json()["replicas"]
    assert (replica["version"], replica["refused"]["version"]) == ("v3", "v5")


def test_admin_errors_are_problem_details(admin: httpx.Client, store: Path) -> None:
    is_refused(admin.post("/admin/activate", json={"version": "nowhere"}), 404, "unknown_version")
    is_refused(admin.post("/admin/activate", json={"version": "../v5"}), 404, "unknown_version")
    is_refused(admin.post("/admin/activate", json={}), 422, "invalid_request")
    is_refused(admin.post("/admin/activate", json={"version": "v5", "force": True}), 422, "invalid_request")
    is_refused(admin.post("/admin/activate", content=b"{" * 100_000, headers=JSON), 413, "too_large")
    is_refused(admin.get("/admin/nowhere"), 404, "not_found")
    (store / "bundles" / "v5" / "manifest.json").write_text("{}")
    is_refused(admin.post("/admin/activate", json={"version": "v5"}), 409, "broken_bundle")
    is_refused(admin.post("/admin/rollback", json={}), 404, "unknown_version")
    (store / "ACTIVATION").write_bytes(b"\xff")
    for path in ("/admin/versions", "/admin/status"):
        answer = admin.get(path).json()
        assert (answer["current"], answer["generation"]) == (None, None)
        assert "expected an activation record" in answer["problem"]
    is_refused(admin.get("/admin/log"), 503, "store_unreadable")


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("host", ["shop.example", "127.0.0.1.shop.example", "[2001:db8::1]:80", ""])
def test_without_a_token_requests_with_other_host_names_are_refused(shared_admin: httpx.Client, host: str) -> None:
    is_refused(shared_admin.get("/admin/status", headers={"Host": host}), 403, "forbidden")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_without_a_token_only_json_requests_can_change_the_version(
    shared_admin: httpx.Client, content_type: str | None
) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    refused = shared_admin.post("/admin/rollback", content=b"{}", headers=headers)
    is_refused(refused, 422, "invalid_request")


@pytest.mark.parametrize("host", ["localhost:8001", "127.0.0.1", "[::1]:8001", "127.0.0.2:99"])
def test_without_a_token_loopback_host_names_are_accepted(shared_admin: httpx.Client, host: str) -> None:
    assert shared_admin.get("/admin/status", headers={"Host": host}).status_code == 200


def test_admin_token_gives_access_and_is_never_printed(store: Path) -> None:
    flags = ("--admin-port", "0", "--admin-host", "0.0.0.0", "--poll-seconds", "600")
    with serving(store, *flags, RECOLLECT_ADMIN_TOKEN=TOKEN, RECOLLECT_REDIS_PREFIX="shop") as server:
        base = server.wait_for("serving")["admin"].replace("0.0.0.0", "127.0.0.1")
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            is_refused(httpx.get(f"{base}/admin/status", headers=headers), 401, "unauthorized")
        settings = httpx.get(f"{base}/admin/settings", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (settings.json()["redis_prefix"], settings.json()["admin_host"]) == ("shop", "0.0.0.0")
        assert settings.json()["admin_token"] == "**********"
        assert TOKEN not in json.dumps(settings.json()) + server.log()


def test_public_and_admin_port_serve_only_their_own_routes(store: Path) -> None:
    with serving(store, "--admin-port", "0") as server:
        assert httpx.get(f"{server.url}/admin/status").status_code == 404
        with admin_client(server) as admin:
            is_refused(admin.post("/predict", json={"query": "bread"}), 404, "not_found")
