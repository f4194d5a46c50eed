"""Admission control of a real server: sizes of bodies and queries, the longest deadline, costs, and equal requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.processes import (
    PATIENCE_SECONDS,
    Server,
    before_each_batch,
    head_of_post,
    is_problem,
    metric,
    serving,
    until,
)

MEGABYTE = 1_048_000
JSON = {"Content-Type": "application/json"}
# Program of a server whose answer to the query "slow" waits until a file exists.
SLOW = before_each_batch("""
if "slow" in queries:
    with Path(os.environ["STARTED"]).open("a") as file:
        file.write("started\\n")
    while not Path(os.environ["GO"]).exists():
        time.sleep(0.01)
""")


@pytest.fixture(scope="module")
def server(light_versions: Path) -> Iterator[Server]:
    with serving(light_versions, "--poll-seconds", "600") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, headers=JSON) as client:
        yield client


def repeated(entry: bytes) -> bytes:
    """As many entries of a JSON list as fit into a megabyte."""
    return b",".join([entry] * ((MEGABYTE - 100) // (len(entry) + 1)))


HOSTILE = {
    "blanks": ("/predict", json.dumps({"query": " " * MEGABYTE}).encode()),
    "many strings": ("/predict/batch", b'{"queries":[' + repeated(b'"a"') + b"]}"),
    "long filter": ("/predict", b'{"query":"x","deny":[' + repeated(b'"a"') + b"]}"),
    "integers": ("/predict/batch", b'{"queries":[' + repeated(b"1") + b"]}"),
    "nested lists": ("/predict", b'{"query":"x","y":[' + repeated(b"[]") + b"]}"),
    "deep lists": ("/predict", b'{"query":[' + repeated(b"[" * 150 + b"]" * 150) + b"]}"),
    "objects": ("/predict", b'{"query":"x","y":[' + repeated(b'{"":0}') + b"]}"),
    "unknown fields": ("/predict", b"{" + b",".join(b'"%x":1' % number for number in range(95_000)) + b"}"),
    "quotation marks": ("/predict", b'{"query":"' + b":" * 2_000 + b'"' * (MEGABYTE - 3_000) + b"}"),
    "short strings with colons": ("/predict", b'{"query":"x",' + repeated(b'":":":"') + b"}"),
    "list of integers in an unknown field": ("/predict", b'{"queries":[' + repeated(b"1") + b"]}"),
    "long integers as uids": ("/predict", b'{"query":"x","allow":[' + repeated(b"9" * 4_000) + b"]}"),
    "long number": ("/predict", b'{"query":"x","lambda":0e' + b"9" * MEGABYTE + b"x}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_body_of_a_megabyte_is_refused(client: httpx.Client, name: str) -> None:
    path, body = HOSTILE[name]
    problem = is_problem(client.post(path, content=body), 422, "invalid_request")
    assert len(problem["errors"]) <= 2


def test_filter_of_100_000_labels_admits_those_that_are_known(client: httpx.Client) -> None:
    known = [label["uid"] for label in client.post("/predict", json={"query": "x", "top_k": 5}).json()["labels"]]
    some, unknown = known[::2], [f"{number}" for number in range(99_000)]

    def found(**filters: list[str]) -> list[str]:
        answer = client.post("/predict", json={"query": "x", "top_k": 5, **filters})
        return [label["uid"] for label in answer.json()["labels"]]

    mixed = unknown[:50_000] + some + unknown[50_000:]
    assert found(allow=mixed) == found(allow=some) == some
    assert found(deny=mixed) == found(deny=some)
    assert not {*some} & {*found(deny=mixed)}


def test_query_over_the_size_limit_gets_413_and_the_message_states_limit_and_size(client: httpx.Client) -> None:
    longest = "né " * 16_384
    answer = client.post("/predict", json={"query": longest})
    assert (answer.status_code, answer.json()["truncated"]) == (200, True)
    problem = is_problem(client.post("/predict", json={"query": longest + "x"}), 413, "query_too_large")
    assert problem["detail"] == "query: expected at most 65,536 bytes, found 65,537; send a shorter text"
    batch = {"queries": ["x", "y" * 65_537]}
    problem = is_problem(client.post("/predict/batch", json=batch), 413, "query_too_large")
    assert problem["detail"].startswith("queries.1: expected at most 65,536 bytes, found 65,537")


def test_body_below_a_limit_of_80_megabytes_is_read_to_its_end(light_versions: Path) -> None:
    with serving(light_versions, "--max-body-bytes", 80_000_000) as server:
        body = b'{"query":"bread"' + b" " * 70_000_000
        assert server.client.post("/predict", content=body + b"}", headers=JSON).status_code == 200
        is_problem(server.client.post("/predict", content=body, headers=JSON), 422, "invalid_request")


@pytest.fixture
def gates(tmp_path: Path) -> dict[str, str]:
    return {"STARTED": str(tmp_path / "started"), "GO": str(tmp_path / "go")}


def test_request_gets_504_after_the_longest_time_that_the_service_allows(store: Path, gates: dict[str, str]) -> None:
    with serving(store, "--max-seconds", "0.2", prelude=SLOW, **gates) as server:
        for timeout in ({}, {"timeout_ms": 600_000}):
            problem = is_problem(server.ask("slow", **timeout), 504, "deadline_passed")
            assert "longer than 200 ms" in problem["detail"]
        Path(gates["GO"]).touch()


def test_query_is_not_computed_if_its_client_has_disconnected(store: Path, gates: dict[str, str]) -> None:
    with serving(store, "--max-queue", "2", prelude=SLOW, **gates) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ask, "slow")
        until(Path(gates["STARTED"]).exists)
        with server.connect() as leaving:
            leaving.sendall(head_of_post(20) + b'{"query": "leaving"}')
            until(lambda: metric(server.client, "recollect_queue_queries") == 1)
        until(lambda: metric(server.client, 'recollect_dropped_total{why="gone"}') == 1)
        Path(gates["GO"]).touch()
        assert (first.result().status_code, server.ask("last").status_code) == (200, 200)
        assert metric(server.client, "recollect_batch_queries_sum") == 2


def test_equal_requests_are_computed_once_and_the_others_are_answered_if_the_first_client_disconnects(
    store: Path, gates: dict[str, str]
) -> None:
    with serving(store, "--cache-mb", "0", prelude=SLOW, **gates) as server, ThreadPoolExecutor() as pool:
        with server.connect() as first:
            first.sendall(head_of_post(16) + b'{"query":"slow"}')
            until(Path(gates["STARTED"]).exists)
            others = [pool.submit(server.ask, "slow") for _ in range(3)]
            until(lambda: metric(server.client, "recollect_coalesced_total") == 3)
        until(lambda: metric(server.client, 'recollect_dropped_total{why="gone"}') == 1)
        Path(gates["GO"]).touch()
        answers = [other.result() for other in others]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert Path(gates["STARTED"]).read_text() == "started\n"
