"""Summaries of load test stages: an error fails a stage unless the stage allows this error."""

from __future__ import annotations

import json

import pytest

from loadtests.load import Exchange
from loadtests.stages import STAGE_NAMES, stages_by_name
from loadtests.summary import any_failed, as_json, as_table, summarise

GOOD = [Exchange(number, 0.001 * number, 0.0, 200, f"v{number % 2}", "") for number in range(100)]
OVERLOADED = Exchange(0, 0.1, 0.2, 503, "v1", "503 overloaded")


def test_stage_without_errors_passes_and_its_summary_has_all_figures() -> None:
    (stage,) = stages_by_name(["steady"])
    summary = summarise(stage, GOOD, 0, [], rate=50, seconds=2.5)
    assert not any_failed([summary])
    assert (summary.asked_qps, summary.answered_qps, summary.late) == (50, 40, 0)
    assert summary.p50_ms < summary.p95_ms < summary.p99_ms < summary.p999_ms
    assert summary.versions == {"v0": 50, "v1": 50}
    assert summary.statuses == {"200": 100}
    assert json.loads(as_json([summary]))["stages"][0]["stage"] == "steady"


@pytest.mark.parametrize("name", STAGE_NAMES)
def test_status_503_overloaded_is_allowed_only_in_the_overload_stage(name: str) -> None:
    (stage,) = stages_by_name([name])
    summary = summarise(stage, [*GOOD, OVERLOADED], 0, [], rate=50, seconds=2)
    assert any_failed([summary]) == (name != "overload")
    assert (summary.errors if name == "overload" else summary.unexpected) == {"503 overloaded": 1}
    assert summary.late == 1


@pytest.mark.parametrize("name", STAGE_NAMES)
@pytest.mark.parametrize("error", ["503 overloaded without Retry-After", "lost: closed", "500 internal"])
def test_every_other_error_fails_every_stage(name: str, error: str) -> None:
    (stage,) = stages_by_name([name])
    summary = summarise(stage, [*GOOD, Exchange(0, 0.1, 0.0, 500, "", error)], 0, [], rate=50, seconds=2)
    assert any_failed([summary])
    assert summary.unexpected == {error: 1}
    assert f"1 {error} (UNEXPECTED)" in as_table([summary])


def test_answers_after_the_end_of_a_stage_do_not_raise_its_throughput() -> None:
    (stage,) = stages_by_name(["overload"])
    late = [Exchange(number, 8.0, 0.0, 200, "v1", "") for number in range(100)]
    assert summarise(stage, late, 0, [], rate=50, seconds=2).answered_qps == pytest.approx(100 / 9.98, abs=0.1)


def test_requests_that_were_never_sent_fail_a_stage_except_overload() -> None:
    steady, overload = stages_by_name(["steady", "overload"])
    assert any_failed([summarise(steady, GOOD, 3, [], rate=50, seconds=2)])
    assert not any_failed([summarise(overload, GOOD, 3, [], rate=50, seconds=2)])


def test_failed_activation_fails_the_stage() -> None:
    (stage,) = stages_by_name(["swap_storm"])
    summary = summarise(stage, GOOD, 0, ["activate: no such version"], rate=50, seconds=2)
    assert any_failed([summary])
    assert summary.unexpected == {"activate: no such version": 1}


def test_stage_without_answers_fails() -> None:
    (stage,) = stages_by_name(["steady"])
    assert any_failed([])
    assert any_failed([summarise(stage, [], 0, [], rate=1, seconds=1)])


def test_error_for_an_unknown_stage_names_the_stage() -> None:
    with pytest.raises(ValueError, match="expected stages among steady,.* found unknown"):
        stages_by_name(["steady", "unknown"])
