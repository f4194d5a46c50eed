"""Open versions follow the log of the live memory: in the background, and at a swap."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from recollect.service.errors import MemoryLogError
from recollect.service.memory.changes import NewLabel, added
from recollect.service.predictor.changing import change
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.store import Store
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.log_follower import LogFollower
from recollect.service.versions.model_manager import ModelManager
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.opening import Opener
from recollect.service.versions.replicas import replicas_of
from tests.service.redis_server import until


def test_rollback_hides_no_acknowledged_change(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogFollower, "start", lambda _: None)  # only the swap reads the log
    manager = ModelManager(Opener(Store(store), threads=1), replicas_of(Store(store), None), Metrics(), 0.02)
    manager.open_current()
    manager.follow()
    try:
        Store(store).activate("v5")
        until(lambda: manager.versions.version() == "v5")
        with manager.versions.lease() as predictor:
            sequence = change(predictor, lambda view, encode: added(view, encode, [], [NewLabel(uid="a", text="a")]))
        Store(store).rollback()
        until(lambda: manager.versions.version() == "v3")
        with manager.versions.lease() as predictor:
            assert predictor.memory.sequence == sequence
            assert predictor.memory.labels.position("a") is not None
    finally:
        manager.close()


class Following:
    """A predictor that only counts how often it reads the log, which may fail."""

    manifest = SimpleNamespace(probabilities=None)
    memory = SimpleNamespace(sequence=3, view=None)

    def __init__(self, version: str, fails: bool) -> None:
        self.version, self._fails, self.reads = version, fails, 0

    def catch_up(self) -> None:
        self.reads += 1
        if self._fails:
            raise MemoryLogError("removed entries")


def test_version_that_cannot_read_the_log_does_not_keep_others_from_reading_it() -> None:
    metrics = Metrics()
    versions = OpenVersions(metrics.by_version)
    standby, current = Following("v1", fails=False), Following("v2", fails=True)
    for predictor in (standby, current):
        versions.replace(cast(Predictor, predictor))
    follower = LogFollower(versions, metrics)
    follower.start()
    try:
        until(lambda: standby.reads and current.reads)
        until(lambda: b"recollect_memory_sequence 3.0" in metrics.exposition())
    finally:
        follower.stop()
    assert versions.retire_standby()
    assert [lease.predictor.version for lease in versions.lease_open()] == ["v2"]
