"""A candidate beside the current version: requests choose a version by a header, and API keys operate the store."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from recollect.core.errors import NotServedError
from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, Server, metric, serving, until
from tests.service.stores import TOP_K, Activation, add_version, answers_with, flip_bit
from tests.service.stores import with_changed_files as changed_files

POLLS = ("--poll-seconds", "0.05")
OPERATOR, NAMED = "operator-0123456789", {"X-Index-Version": "v5"}


@pytest.fixture
def activation(store: Path) -> Activation:
    return Activation(Store(store), None)


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    with serving(store, *POLLS) as server:
        yield server


def answered_by(server: Server, **headers: str) -> str:
    """The version that answers a request."""
    answer = server.client.post("/predict", json={"query": "bread"}, headers=headers).raise_for_status()
    version: str = answer.json()["version"]
    assert answer.headers["x-index-version"] == version
    assert len(answer.json()["labels"]) == TOP_K[version]
    return version


def open_candidate(activation: Activation, version: str = "v5") -> None:
    activation.wait(activation.activate(version, candidate=True), PATIENCE_SECONDS)


def test_candidate_that_becomes_current_is_not_opened_again(
    store: Path, server: Server, activation: Activation
) -> None:
    open_candidate(activation)
    encoder = store / "bundles" / "v5" / "encoder.onnx"
    encoder.unlink()
    encoder.write_bytes(b"no encoder")  # v5 cannot be opened any more
    activation.wait(activation.activate("v5"), PATIENCE_SECONDS)
    assert answered_by(server) == "v5"
    activation.wait(activation.rollback(), PATIENCE_SECONDS)
    open_candidate(activation)  # it is open as the standby
    assert answered_by(server, **NAMED) == "v5"


def test_candidate_whose_bundle_was_replaced_is_opened_again_when_it_becomes_current(
    store: Path, server: Server, activation: Activation
) -> None:
    open_candidate(activation)
    shutil.rmtree(store / "bundles" / "v5")
    add_version(store, "v3", "v5", changed_files)
    activation.wait(activation.activate("v5"), PATIENCE_SECONDS)
    assert len(server.uids("bread")) == TOP_K["v3"]
    until(lambda: activation.reports.read()[0].open == ("v5", "v3"))


def test_candidate_that_cannot_be_opened_is_refused_and_the_current_version_is_not_affected(
    store: Path, server: Server, activation: Activation
) -> None:
    add_version(store, "v3", "v7", changed_files)
    flip_bit(store / "bundles" / "v7" / "golden.json")
    with pytest.raises(NotServedError, match=r"v7 is the candidate, but 1 of 1 replicas .*:\n.*golden.json"):
        open_candidate(activation, "v7")
    assert answered_by(server) == "v3"
    open_candidate(activation)
    assert answered_by(server, **NAMED) == "v5"


def test_metrics_count_the_requests_of_each_open_version(server: Server, activation: Activation) -> None:
    open_candidate(activation)
    for headers in ({}, NAMED, NAMED):
        answered_by(server, **headers)
    answered = 'recollect_version_requests_total{outcome="answered",version='
    assert [metric(server.client, f'{answered}"{version}"') for version in ("v3", "v5")] == [1, 2]
    assert metric(server.client, 'recollect_version_request_seconds_count{version="v5"') == 2
    activation.rollback()
    until(lambda: '"v5"' not in server.client.get("/metrics").text)


@pytest.fixture
def operated(store: Path) -> Iterator[Server]:
    """A server whose client has the key of an operator."""
    with serving(store, *POLLS, keys=f"operator {OPERATOR} 0 operate\n", key=OPERATOR) as server:
        yield server


def test_changes_that_are_not_possible_are_refused_with_a_stable_code(store: Path, operated: Server) -> None:
    before = Store(store).activation()
    (store / "bundles" / "v5" / "manifest.json").write_text("{}")
    for path, status, code in (
        ("/versions/v9/activate", 404, "unknown_version"),
        ("/versions/v3/activate?candidate=true", 409, "activation_refused"),
        ("/versions/v5/activate", 409, "broken_bundle"),
        ("/versions/rollback", 409, "activation_refused"),
    ):
        refused = operated.client.post(path)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert operated.client.get("/versions").json()["versions"][-1]["problem"]
    assert Store(store).activation() == before


def test_suspended_replica_does_not_carry_out_an_activation_whose_client_has_gone(
    store: Path, operated: Server
) -> None:
    operated.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(httpx.ReadTimeout):
            operated.client.post("/versions/v5/activate", timeout=0.5)
        Store(store).activate("v3", why="a newer activation")
    finally:
        operated.process.send_signal(signal.SIGCONT)
    until(lambda: metric(operated.client, 'recollect_requests_total{path="/versions",status="499"}') == 1)
    assert [record.why for record in Store(store).log()][-1] == "a newer activation"


def test_candidate_learns_of_changes_of_the_live_memory(store: Path, activation: Activation) -> None:
    add_version(store, "v3", "v7", answers_with(7))
    with serving(store, *POLLS, "--writable", keys=f"writer {OPERATOR} 0 write\n", key=OPERATOR) as server:
        open_candidate(activation, "v7")
        body = {"instances": [{"uid": "new", "text": "a purple elephant", "labels": ["Law"]}]}
        written = server.client.post("/memory/instances", json=body)
        query = {"query": "a purple elephant", "min_sequence": written.json()["sequence"]}
        answer = server.client.post("/predict", json=query, headers={"X-Index-Version": "v7"})
        assert (answer.status_code, answer.json()["version"]) == (200, "v7")
        assert answer.json()["labels"][0]["uid"] == "Law"
