"""The measurements of the fleet's constants and of the real service, with short loads."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.fleet.constants import ThreadCost
from benchmarks.fleet.measurements.compute import measure_compute
from benchmarks.fleet.measurements.drift import measure_drift
from benchmarks.fleet.measurements.http import measure_http
from benchmarks.fleet.measurements.service import measure_service
from benchmarks.fleet.measurements.swap import measure_swap
from benchmarks.fleet.simulation.fleet import Constants
from benchmarks.fleet.validation import validate


@pytest.mark.slow
def test_the_constants_are_measured_and_predict_the_real_service(built: Any) -> None:
    store = built.store
    constants = Constants(
        measure_compute(store, seconds=1),
        measure_http(store, seconds=0.5),
        measure_swap(store, repetitions=2),
        measure_drift(store, seconds=1),
    )
    measured = measure_service(store, replicas=2, seconds=2, repetitions=1)

    http = constants.http
    for costs in (http.single, http.proxied):
        assert_costs_more_after_pauses(costs.loop)
        assert_costs_more_after_pauses(costs.client)
        for waits_ms in (costs.wait_ms, costs.busy_wait_ms):
            assert len(waits_ms) == 101
            assert max(waits_ms) > 0
        assert 0 <= costs.idle_cores < 1
    assert all(milliseconds > 0 for milliseconds in http.alone_ms.values())
    assert http.refused.pause_ms > 0
    assert http.single.proxy.busy_ms == 0 < http.proxied.proxy.busy_ms
    assert 0 < http.cached_loop.busy_ms < http.single.loop.busy_ms
    assert sum(step.cpu_ms for step in constants.swap.steps) > 0

    pairs = validate([measured], constants).pairs
    assert {pair.figure for pair in pairs} == {"compute_ms", "answered", "p50", "p99", "refused", "lost"}
    for pair in pairs:
        assert math.isfinite(pair.error)
        assert (pair.predicted.median > 0) == (pair.measured.median > 0) or pair.figure in ("refused", "lost")


def assert_costs_more_after_pauses(cost: ThreadCost) -> None:
    assert cost.pause_ms == sorted(cost.pause_ms)
    assert 0 < cost.busy_ms < max(cost.woken_ms)
