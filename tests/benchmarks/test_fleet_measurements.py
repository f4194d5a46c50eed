"""The measurements of the fleet's constants and of the real service, with short loads."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.fleet.measurements.changes import measure_changes
from benchmarks.fleet.measurements.compute import measure_compute
from benchmarks.fleet.measurements.drift import measure_drift
from benchmarks.fleet.measurements.http import measure_http
from benchmarks.fleet.measurements.service import measure_service
from benchmarks.fleet.measurements.swap import measure_swap
from benchmarks.fleet.simulation.fleet import Constants
from benchmarks.fleet.validation import validate
from recollect.service.store.store import Store


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
        assert min(costs.loop.busy_ms, *costs.loop.woken_ms, costs.client.busy_ms, *costs.client.woken_ms) > 0
        assert costs.refused.pause_ms > 0
        assert len(costs.wait_ms) == len(costs.busy_wait_ms) == 101
    assert http.single.proxy.busy_ms == 0 < http.proxied.proxy.busy_ms
    assert min(http.cached_loop.busy_ms, *http.alone_ms.values(), max(http.lock_share.values())) > 0
    assert sum(step.cpu_ms for step in constants.swap.steps) > 0

    pairs = validate([measured], constants).pairs
    assert {pair.figure for pair in pairs} == {"compute_ms", "answered", "p50", "p99", "refused", "lost"}
    # On a busy machine, a short load can have no answer. Then its percentiles are 0, measured and predicted.
    counted = [pair for pair in pairs if pair.figure not in ("refused", "lost") and pair.measured.median > 0]
    assert {pair.figure for pair in counted if pair.load == "saturated"} == {"compute_ms", "answered", "p50", "p99"}
    assert all(pair.predicted.median > 0 for pair in counted)


@pytest.mark.slow
def test_live_writes_and_a_compaction_are_measured_in_a_copy_of_the_store(built: Any) -> None:
    changes = measure_changes(built.store, writes=3)

    assert changes.log_bytes > 0 < changes.compact_cpu_ms
    assert Store(built.store).versions() == [built.version]
