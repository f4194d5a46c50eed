"""Summaries: an error fails a stage unless the stage allows it."""

from __future__ import annotations

import json

import pytest

from loadtests.arrivals import Exchange
from loadtests.stages import NAMES, chosen
from loadtests.summary import as_json, as_table, failed, summarise

GOOD = [Exchange(nth, 0.001 * nth, 0.0, 200, f"v{nth % 2}", "") for nth in range(100)]
OVERLOADED = Exchange(0, 0.1, 0.2, 503, "v1", "503 overloaded")


def test_a_stage_without_errors_passes_and_tells_its_figures() -> None:
    (stage,) = chosen(["steady"])
    summary = summarise(stage, GOOD, 0, [], rate=50, seconds=2.5)
    assert not failed([summary])
    assert (summary.asked_qps, summary.answered_qps, summary.late) == (50, 40, 0)
    assert summary.p50_ms < summary.p95_ms < summary.p99_ms < summary.p999_ms
    assert summary.versions == {"v0": 50, "v1": 50}
    assert summary.statuses == {"200": 100}
    assert json.loads(as_json([summary]))["stages"][0]["stage"] == "steady"


@pytest.mark.parametrize("name", NAMES)
def test_an_overloaded_service_is_expected_under_overload_alone(name: str) -> None:
    (stage,) = chosen([name])
    summary = summarise(stage, [*GOOD, OVERLOADED], 0, [], rate=50, seconds=2)
    assert failed([summary]) == (name != "overload")
    assert (summary.errors if name == "overload" else summary.unexpected) == {"503 overloaded": 1}
    assert summary.late == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", ["503 overloaded without Retry-After", "lost: closed", "500 internal"])
def test_other_errors_are_expected_nowhere(name: str, error: str) -> None:
    (stage,) = chosen([name])
    summary = summarise(stage, [*GOOD, Exchange(0, 0.1, 0.0, 500, "", error)], 0, [], rate=50, seconds=2)
    assert failed([summary])
    assert summary.unexpected == {error: 1}
    assert f"1 {error} (UNEXPECTED)" in as_table([summary])


def test_a_backlog_is_no_throughput() -> None:
    (stage,) = chosen(["overload"])
    late = [Exchange(nth, 8.0, 0.0, 200, "v1", "") for nth in range(100)]
    assert summarise(stage, late, 0, [], rate=50, seconds=2).answered_qps == pytest.approx(100 / 9.98, abs=0.1)


def test_requests_never_sent_fail_a_load_that_could_be_served() -> None:
    steady, overload = chosen(["steady", "overload"])
    assert failed([summarise(steady, GOOD, 3, [], rate=50, seconds=2)])
    assert not failed([summarise(overload, GOOD, 3, [], rate=50, seconds=2)])


def test_a_fault_beside_the_requests_fails_the_stage() -> None:
    (stage,) = chosen(["swap_storm"])
    summary = summarise(stage, GOOD, 0, ["activate: no such version"], rate=50, seconds=2)
    assert failed([summary])
    assert summary.unexpected == {"activate: no such version": 1}


def test_nothing_asked_proves_nothing() -> None:
    (stage,) = chosen(["steady"])
    assert failed([])
    assert failed([summarise(stage, [], 0, [], rate=1, seconds=1)])


def test_an_unknown_stage_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="expected stages among steady,.* found bliss"):
        chosen(["steady", "bliss"])
