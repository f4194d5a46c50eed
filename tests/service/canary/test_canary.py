"""A canary in running replicas: its share of the requests, promotion, removal, refusal and automatic stop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from recollect.service.canary.trial import position
from recollect.service.errors import CanaryStoppedError, NotServedError
from recollect.service.store.activation_record import Canary
from recollect.service.store.store import Store
from recollect.service.versions.activation import Activation
from recollect.service.versions.replicas import reports
from recollect.service.versions.reports import CanaryReport
from tests.service.http_helpers import PATIENCE_SECONDS, Server, add_version, flip_bit, rehash, serving
from tests.service.light_stores import TOP_K
from tests.service.redis_server import until

POLLS = ("--poll-seconds", "0.05")
KEYS = [f"user {number}" for number in range(60)]

# Program of a server in which v5 fails to answer while a file exists.
FAILING = """
from pathlib import Path
from recollect.service.predictor.predictor import Predictor
predict_together = Predictor.predict_together
def fail(self, requests, *rest):
    if self.version == "v5" and Path({fault!r}).exists():
        raise RuntimeError("a fault of v5")
    return predict_together(self, requests, *rest)
Predictor.predict_together = fail
"""


@pytest.fixture
def activation(store: Path) -> Activation:
    return Activation(Store(store), None)


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    with serving(store, *POLLS) as server:
        yield server


def ask(server: Server, key: str | None = None, query: str = "tax on bread") -> str:
    """The version that answers."""
    headers = {} if key is None else {"X-Request-Key": key}
    answer = httpx.post(f"{server.url}/predict", json={"query": query}, headers=headers, timeout=PATIENCE_SECONDS)
    answer.raise_for_status()
    version: str = answer.json()["version"]
    assert answer.headers["x-index-version"] == version
    assert len(answer.json()["labels"]) == TOP_K[version]
    return version


def keys_of(server: Server, version: str) -> set[str]:
    """The keys whose requests a version answers."""
    return {key for key in KEYS if ask(server, key) == version}


def start(activation: Activation, share: float, version: str = "v5", shadow: bool = False) -> None:
    record = activation.start_canary(Canary(version=version, share=share, shadow=shadow))
    activation.wait(record, PATIENCE_SECONDS)


def metrics(server: Server) -> dict[tuple[str, str], float]:
    """The metrics by version: values by name and version. The outcome of requests is part of the name."""
    text = httpx.get(f"{server.url}/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (sample.name + sample.labels.get("outcome", ""), sample.labels["version"]): sample.value
        for sample in samples
        if re.match("recollect_(version|shadow)_", sample.name) and "le" not in sample.labels
    }


def own_golden_queries(folder: Path, manifest: dict[str, Any]) -> None:
    """A change to a copied version: the file of the golden queries differs from that of the other version."""
    (folder / "golden.json").write_bytes(b"[ ]")
    rehash(folder, manifest)


def canaries(activation: Activation) -> list[CanaryReport | None]:
    return [report.canary for report in reports(activation.replicas)]


def test_requests_with_equal_keys_stay_in_the_share_of_the_canary_until_it_is_promoted(
    server: Server, activation: Activation
) -> None:
    start(activation, 0.3)
    first = keys_of(server, "v5")
    assert first == {key for key in KEYS if position("v5", key) < 0.3}
    start(activation, 0.6)
    assert first < keys_of(server, "v5") == {key for key in KEYS if position("v5", key) < 0.6}
    assert len(server.events("canary_opened")) == 1
    assert httpx.get(f"{server.url}/version").json()["version"] == "v3"
    activation.wait(activation.promote(why="better"), PATIENCE_SECONDS)
    assert keys_of(server, "v5") == {*KEYS}
    assert len(server.events("bundle_swapped")) == 1
    assert canaries(activation) == [None]
    activation.wait(activation.rollback(), PATIENCE_SECONDS)
    assert keys_of(server, "v5") == set()


def test_request_without_a_key_is_assigned_by_its_first_query(server: Server, activation: Activation) -> None:
    start(activation, 0.5)
    queries = [f"bread number {number}" for number in range(20)]
    for query in queries:
        expected = "v5" if position("v5", query) < 0.5 else "v3"
        assert ask(server, query=query) == expected
        batch = httpx.post(f"{server.url}/predict/batch", json={"queries": [query, "other"]})
        assert batch.json()["version"] == expected


def test_metrics_compare_both_versions_and_forget_a_removed_canary(server: Server, activation: Activation) -> None:
    start(activation, 0.5)
    answered = Counter(ask(server, key) for key in KEYS)
    found = metrics(server)
    for version in ("v3", "v5"):
        assert found["recollect_version_requests_totalanswered", version] == answered[version]
        assert found["recollect_version_request_seconds_count", version] == answered[version]
        assert found["recollect_version_top_score_count", version] == answered[version]
        assert 0 < found["recollect_version_top_score_sum", version] <= answered[version]
        assert found["recollect_version_empty_answers_total", version] == 0
    nothing = {"query": "bread", "threshold": 1.0}
    assert httpx.post(f"{server.url}/predict", json=nothing, headers={"X-Request-Key": "user 0"}).json()["labels"] == []
    assert sum(metrics(server)["recollect_version_empty_answers_total", version] for version in ("v3", "v5")) == 1
    activation.wait(activation.rollback(), PATIENCE_SECONDS)
    assert keys_of(server, "v5") == set()
    until(lambda: {version for _, version in metrics(server)} == {"v3"})


def test_canary_that_cannot_be_opened_is_refused_and_the_current_version_is_not_affected(
    store: Path, server: Server, activation: Activation
) -> None:
    add_version(store, "v3", "v7", own_golden_queries)
    flip_bit(store / "bundles" / "v7" / "golden.json")
    with pytest.raises(NotServedError, match=r"v7 is the canary, but 1 of 1 replicas do not serve it:\n.*golden.json"):
        start(activation, 0.5, "v7")
    assert keys_of(server, "v3") == {*KEYS}
    (report,) = reports(activation.replicas)
    assert (report.state, report.version, report.refused) == ("serving", "v3", None)
    assert report.canary is not None
    assert report.canary.state == "failed"
    with pytest.raises(CanaryStoppedError, match="refused to open it"):
        activation.promote()
    start(activation, 0.5)
    assert keys_of(server, "v5")


def test_replica_that_stops_a_failing_canary_protects_the_other_replicas(
    store: Path, tmp_path: Path, activation: Activation
) -> None:
    fault, limits = tmp_path / "fault", ("--canary-window", "10")
    with serving(store, *POLLS, *limits, prelude=FAILING.format(fault=str(fault))) as failing:
        with serving(store, *POLLS) as other:
            start(activation, 0.5)
            key = min(KEYS, key=lambda key: position("v5", key))
            assert (ask(failing, key), ask(other, key)) == ("v5", "v5")
            fault.touch()
            request: dict[str, Any] = {"json": {"query": "a new query"}, "headers": {"X-Request-Key": key}}
            assert httpx.post(f"{failing.url}/predict", **request).status_code == 500
            assert ask(failing, key) == "v3"
            reason = "1 of its last 2 requests failed, and 0.0% of the current version's requests"
            assert failing.wait_for("canary_stopped")["reason"] == other.wait_for("canary_stopped")["reason"] == reason
            assert ask(other, key) == "v3"
            assert "recollect_canary_stopped 1.0" in httpx.get(f"{other.url}/metrics").text
        with serving(store, *POLLS) as restarted:
            assert restarted.wait_for("canary_stopped")["reason"] == reason
            assert restarted.events("canary_opened") == []
            assert ask(restarted, key) == "v3"
        until(lambda: [each.state for each in canaries(activation) if each] == ["stopped"])
        with pytest.raises(CanaryStoppedError, match=rf"stopped it: {reason}; run `recollect rollback`, or"):
            activation.promote()
        fault.unlink()
        start(activation, 0.5)  # a later generation starts a new trial
        assert ask(failing, key) == "v5"
        fault.touch()
        for number in range(2):
            httpx.post(f"{failing.url}/predict", **{**request, "json": {"query": f"new {number}"}})
        failing.wait_for("canary_stopped", 2)
        fault.unlink()
        activation.wait(activation.promote(force=True), PATIENCE_SECONDS)
        assert ask(failing, "another key") == "v5"


def test_shadow_is_compared_but_never_answers(server: Server, activation: Activation) -> None:
    before = httpx.post(f"{server.url}/predict", json={"query": "tax on bread"}).content
    start(activation, 1.0, shadow=True)
    assert httpx.post(f"{server.url}/predict", json={"query": "tax on bread"}).content == before
    for number in range(10):
        assert ask(server, query=f"bread number {number}") == "v3"
        until(lambda expected=number + 1: metrics(server).get(("recollect_shadow_compared_total", "v5")) == expected)
    found = metrics(server)
    assert found["recollect_shadow_same_top_label_total", "v5"] == 10  # both have the same labels, but v5 more of them
    assert found["recollect_shadow_overlap_sum", "v5"] == pytest.approx(10 * 3 / 5)
    assert found["recollect_shadow_score_difference_sum", "v5"] == pytest.approx(0, abs=1e-6)
    assert found["recollect_version_requests_totalanswered", "v5"] == 0
    assert ask(server, query="bread number 0") == "v3"  # from the cache: not compared
    assert httpx.post(f"{server.url}/predict/batch", json={"queries": ["x", "y"]}).json()["version"] == "v3"
    counts = ("compared", "skipped")
    until(lambda: sum(metrics(server)[f"recollect_shadow_{each}_total", "v5"] for each in counts) == 12)
    assert "bread" not in server.log()


def test_shadow_that_fails_is_stopped_and_no_request_fails(store: Path, tmp_path: Path, activation: Activation) -> None:
    fault = tmp_path / "fault"
    with serving(store, *POLLS, "--canary-window", "10", prelude=FAILING.format(fault=str(fault))) as server:
        start(activation, 1.0, shadow=True)
        fault.touch()
        assert ask(server, query="a secret text") == "v3"
        assert server.wait_for("canary_stopped")["version"] == "v5"
        assert server.wait_for("shadow_failed")["error"] == "RuntimeError"
        assert "secret" not in server.log()
        assert ask(server, query="another text") == "v3"
