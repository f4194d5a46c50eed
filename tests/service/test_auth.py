"""Requests with API keys, rate limits, and requests from web pages of other origins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from recollect.core.errors import SettingsError
from recollect.service.http.api_keys import read_api_keys
from recollect.service.serving import rate_limit
from recollect.service.serving.rate_limit import Quota, RateLimits
from recollect.service.telemetry.metrics import Metrics
from tests.processes import Server, serving, until

FRONT, BATCH = "front-0123456789abcdef", "batch-0123456789abcdef"
QUERY = {"query": "bread"}


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    keys = f"# keys of the shop\nfront {FRONT}\n\nbatch {BATCH} 0.001\n"
    flags = ("--poll-seconds", "600", "--max-batch", "4", "--access-log", "--cors-origins", "https://shop.example")
    with serving(light_versions, *flags, keys=keys) as server:
        yield server


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client


WRONG = [{}, *({"Authorization": value} for value in ("Bearer", "Bearer wrong-key-wrong-key", f"Basic {FRONT}"))]
WRONG += [{"X-API-Key": value} for value in (FRONT[:-1], FRONT + "0", "front")]


@pytest.mark.parametrize("headers", WRONG)
def test_request_without_a_known_api_key_is_refused(client: httpx.Client, headers: dict[str, str]) -> None:
    for path in ("/predict", "/predict/batch", "/labels/x", "/version"):
        response = client.request("POST" if "predict" in path else "GET", path, content=b"no JSON", headers=headers)
        assert (response.status_code, response.json()["code"]) == (401, "unauthorized"), path
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-request-id"]


def test_request_over_the_rate_limit_of_its_key_gets_429_with_retry_after(server: Server, client: httpx.Client) -> None:
    headers = {"X-API-Key": BATCH}
    first = client.post("/predict/batch", json={"queries": ["a", "b", "c", "d"]}, headers=headers)
    assert first.status_code == 200  # a batch of the maximum size is allowed at once; the next query must wait
    refused = client.post("/predict", json=QUERY, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) > 900
    assert client.post("/predict", json=QUERY, headers={"X-API-Key": FRONT}).status_code == 200
    assert 'recollect_rate_limited_total{key="batch"} 1.0' in client.get("/metrics").text
    assert BATCH not in server.log()
    until(lambda: {event["key"] for event in server.events("request") if event["status"] == 429} == {"batch"})


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "expected at least one API key, found none"),
        ("front\n", "line 1: expected NAME KEY"),
        (f"front {FRONT} 5 6\n", "found 4 words"),
        ("front short-secret\n", "line 1: expected a key of 16 characters or more, found 12"),
        (f"front {FRONT}\u00e9\n", "expected a key of ASCII letters, digits and signs"),
        ("front REPLACE_WITH_A_LONG_RANDOM_KEY 200\n", "line 1: expected a key, found the placeholder of an example"),
        (f"front {FRONT} many\n", "expected queries per second (0 for no limit), found 'many'"),
        (f"front {FRONT} -1\n", "found '-1'"),
        (f"front {FRONT} inf\n", "found 'inf'"),
        (f"fr/ont {FRONT}\n", "line 1: expected NAME KEY"),
        (f"front {FRONT}\nfront {BATCH}\n", "found front again"),
        (f"front {FRONT}\nback {FRONT}\n", "found back again"),
    ],
)
def test_invalid_file_of_api_keys_is_refused_without_printing_its_secrets(
    tmp_path: Path, content: str, found: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(SettingsError) as refused:
        read_api_keys(path, 0)
    assert found in str(refused.value)
    for secret in (FRONT, BATCH, "short-secret"):
        assert secret not in str(refused.value)
    with pytest.raises(SettingsError, match="No such file"):
        read_api_keys(tmp_path / "nowhere", 0)


@pytest.mark.parametrize(
    ("rest", "rate", "scopes"),
    [
        ("", 7, (False, False)),
        (" 5", 5, (False, False)),
        (" write", 7, (True, False)),
        (" 5 write", 5, (True, False)),
        (" operate", 7, (False, True)),
        (" 5 write operate", 5, (True, True)),
    ],
)
def test_line_of_an_api_key_can_state_its_rate_and_its_scopes(
    tmp_path: Path, rest: str, rate: float, scopes: tuple[bool, bool]
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"front {FRONT}{rest}\n")
    key = read_api_keys(path, 7).find(FRONT)
    assert key is not None
    assert (key.rate, (key.writes, key.operates)) == (rate, scopes)


def test_queries_after_a_burst_are_allowed_at_the_configured_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(rate_limit.time, "monotonic", lambda: now)
    limits, quota = RateLimits(max_batch=4, max_cost=4, workers=1, redis=None, metrics=Metrics()), Quota("front", 10.0)

    def ask(queries: int = 1) -> float:
        return asyncio.run(limits.wait_seconds(quota, queries))

    assert [ask() for _ in range(10)] == [0.0] * 10  # the queries of one second
    assert ask() == pytest.approx(0.1)
    now += 0.1
    assert ask() == 0.0
    assert ask() > 0
    now += 60
    assert ask(10) == 0.0
    assert ask(4) == pytest.approx(0.4)
    assert asyncio.run(limits.wait_seconds(Quota("free", 0.0), 10_000)) == 0.0
    of_two = RateLimits(max_batch=4, max_cost=4, workers=2, redis=None, metrics=Metrics())
    assert [asyncio.run(of_two.wait_seconds(quota, 1)) for _ in range(5)] == [0.0] * 5
    assert asyncio.run(of_two.wait_seconds(quota, 1)) == pytest.approx(0.2)


def test_paid_part_of_a_cost_counts_once_and_the_time_to_wait_ends_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    now, quota = 100.0, Quota("front", 10.0)
    monkeypatch.setattr(rate_limit.time, "monotonic", lambda: now)
    limits = RateLimits(max_batch=4, max_cost=40, workers=1, redis=None, metrics=Metrics())

    def ask(cost: int, paid: int) -> float:
        """Pay a part, as for a body, then the rest."""
        return asyncio.run(limits.wait_seconds(quota, paid)) or asyncio.run(limits.wait_seconds(quota, cost, paid))

    assert ask(40, 3) == 0.0  # a request over the burst is admitted if nothing is owed
    wait = ask(1, 1)
    assert wait == pytest.approx(3.1)  # until 10 of 41 are left
    now += wait
    refused = ask(10, 1)
    assert refused == pytest.approx(1.0)
    now += refused
    assert ask(10, 1) == 0.0


def test_wrong_requests_count_towards_the_rate(light_versions: Path) -> None:
    keys = f"front {FRONT} 0.01\nbatch {BATCH} 0.01\n"
    with serving(light_versions, "--max-batch", "4", keys=keys) as server:

        def ask(key: str, **fields: object) -> httpx.Response:
            return server.client.post("/predict", json={"query": "x"} | fields, headers={"X-API-Key": key})

        assert [ask(FRONT, unknown=1).status_code for _ in range(6)] == [422] * 4 + [429] * 2
        assert ask(BATCH, unknown="y" * 10_000).status_code == 422
        refused = ask(BATCH)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert 500 < int(refused.headers["retry-after"]) <= 600  # 9 units for the bytes, less the burst of 4


def test_documentation_and_metrics_need_an_api_key_if_they_are_private(light_versions: Path) -> None:
    flags = ("--docs", "key", "--metrics", "key", "--no-playground")
    with serving(light_versions, *flags, keys=f"prometheus {FRONT}\n") as server:
        client = server.client
        for path in ("/docs", "/docs/swagger-ui.css", "/redoc", "/openapi.json", "/metrics"):
            for key, status in (("", 401), (BATCH, 401), (FRONT, 200)):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                assert client.get(path, headers=headers).status_code == status, path
        for path in ("/metrics/", "//metrics", "/%6detrics", "/docs/", "/openapi.json/"):
            assert "recollect" not in client.get(path).text.lower(), path
        assert client.get("/health/ready").status_code == 200
