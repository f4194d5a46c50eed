"""Swaps of a running replica: abandoned openings, the standby, generations, and too little memory."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recollect.core.errors import InsufficientMemoryError
from recollect.edits import changes
from recollect.edits.changes import NewLabel
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.model_manager import ModelManager
from recollect.service.versions.opening import Opener
from recollect.service.versions.reports import reports_of
from recollect.store.store import Store
from tests.processes import PATIENCE_SECONDS, Server, serving, until
from tests.service.stores import Activation, add_version, answers_with, loading, until_serves
from tests.store.servers import WebServer

POLLS = ("--poll-seconds", "0.05")

# Program of a server in which an opening of v5 ends only after a file exists. With `pauses`, the opening calls the
# throttle meanwhile, as between two steps of a long opening.
SLOW = """
import time
from pathlib import Path
from recollect.service.versions import opening
open_version = opening.Opener.open
def open_slowly(self, version, throttle=None, share_with=()):
    opened = open_version(self, version, throttle, share_with)
    Path({gate!r} + "-reached").touch()
    while version == "v5" and not Path({gate!r}).exists():
        if {pauses}:
            throttle.pause()
        time.sleep(0.01)
    return opened
opening.Opener.open = open_slowly
"""


@contextlib.contextmanager
def slow_replica(store: Path, gate: Path, pauses: bool) -> Iterator[tuple[Server, Activation]]:
    """A replica that opens v5 now, and goes on opening it until the file `gate` exists."""
    with serving(store, *POLLS, prelude=SLOW.format(gate=str(gate), pauses=pauses)) as server:
        gate.with_name("gate-reached").unlink()  # from the opening of v3 at the start
        activation = Activation(Store(store), None)
        activation.activate("v5")
        until(gate.with_name("gate-reached").exists)
        yield server, activation


@pytest.mark.parametrize("pauses", [True, False], ids=["between two steps", "at its end"])
def test_version_that_is_rolled_back_while_it_opens_never_answers(store: Path, tmp_path: Path, pauses: bool) -> None:
    gate = tmp_path / "gate"
    with slow_replica(store, gate, pauses) as (server, activation), loading(server.url, threads=1) as load:
        record = activation.rollback()
        if not pauses:
            gate.touch()
        (report,) = activation.wait(record, PATIENCE_SECONDS)
        assert (report.version, report.generation) == ("v3", 3)
        abandoned = server.wait_for("opening_abandoned")
        assert (abandoned["version"], abandoned["generation"]) == ("v5", 2)
        gate.touch()
        load.wait_for(20)
        assert server.events("bundle_swapped") == []
    assert (set(load.answers), load.wrong) == ({"v3"}, [])


def test_rollback_needs_no_opening_because_the_previous_version_is_still_open(store: Path) -> None:
    with serving(store, *POLLS) as server:
        activation = Activation(Store(store), None)
        activation.wait(activation.activate("v5"), PATIENCE_SECONDS)
        encoder = store / "bundles" / "v3" / "encoder.onnx"
        encoder.unlink()
        encoder.write_bytes(b"no encoder")  # v3 cannot be opened any more
        activation.wait(activation.rollback(), PATIENCE_SECONDS)
        assert len(server.ask("bread").json()["labels"]) == 3
        activation.wait(activation.activate("v5"), PATIENCE_SECONDS)
        server.wait_for("bundle_swapped", 3)
        assert [event["version"] for event in server.events("bundle_swapped")] == ["v5", "v3", "v5"]


def test_only_the_current_and_the_previous_version_stay_mapped_even_if_no_requests_arrive(store: Path) -> None:
    add_version(store, "v3", "v7", answers_with(7))
    with serving(store, *POLLS) as server:
        for version in ("v7", "v3", "v7", "v5", "v3"):
            Store(store).activate(version)
            until_serves(server.client, version)
        maps = Path(f"/proc/{server.process.pid}/maps")
        until(lambda: {*re.findall(r"/bundles/(v\d)/", maps.read_text())} == {"v3", "v5"})


def test_replica_refuses_a_store_that_goes_back_and_serves_the_next_activation(store: Path) -> None:
    with serving(store, *POLLS) as server:
        Store(store).activate("v5")
        until_serves(server.client, "v5")
        (store / "activations" / "00000002.json").rename(store / "second")
        refused = server.wait_for("store_unreadable")
        assert "expected the activation of v5 that was read before, found none; " in refused["error"]
        assert server.version() == "v5"
        Store(store).activate("v3")
        refused = server.wait_for("store_unreadable", 2)
        assert "expected the activation of v5 that was read before, found one of v3; " in refused["error"]
        (store / "second").replace(store / "activations" / "00000002.json")
        assert Store(store).activate("v3").generation == 3
        until_serves(server.client, "v3")


def test_standby_is_closed_if_the_next_version_would_not_fit_into_memory_otherwise(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_version(store, "v3", "v7", answers_with(7))
    manager = ModelManager(Opener(Store(store), threads=1), reports_of(Store(store), None), Metrics(), 0.02)
    manager.open_current()
    with manager.versions.lease() as standby:
        pass
    manager.follow()
    try:
        Store(store).activate("v5")
        until(lambda: manager.versions.version() == "v5")

        def require_memory(manifest: Any, *_: object) -> None:
            if hasattr(standby, "bundle"):
                raise InsufficientMemoryError("too little memory")

        monkeypatch.setattr("recollect.service.versions.opening.require_memory", require_memory)
        Store(store).activate("v7")
        until(lambda: manager.versions.version() == "v7")
        assert not hasattr(standby, "bundle")
    finally:
        manager.close()


def test_rollback_hides_no_acknowledged_change(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.service.versions.model_manager._LOG_SECONDS", 3600.0)  # only the swap reads the log
    manager = ModelManager(Opener(Store(store), threads=1), reports_of(Store(store), None), Metrics(), 0.02)
    manager.open_current()
    manager.follow()
    try:
        Store(store).activate("v5")
        until(lambda: manager.versions.version() == "v5")
        with manager.versions.lease() as predictor:
            written = predictor.change(
                lambda view, encode: changes.put(view, encode, [], [NewLabel(uid="a", text="a")])
            )
        Store(store).rollback()
        until(lambda: manager.versions.version() == "v3")
        with manager.versions.lease() as predictor:
            assert predictor.memory.sequence == written.sequence
            assert predictor.memory.labels.position("a") is not None
    finally:
        manager.close()


# A server that counts as idle as soon as no request has come for a second.
SOON_IDLE = "from recollect.service.versions import model_manager\nmodel_manager._IDLE_AFTER_SECONDS = 1.0\n"


def test_idle_replica_asks_the_server_of_its_store_seldom_and_follows_it(store: Path, tmp_path: Path) -> None:
    cache = ("--bundle-cache", str(tmp_path / "cache"))
    with WebServer(store).running() as web, serving(web.url, *cache, prelude=SOON_IDLE) as server:
        time.sleep(2)
        asked = len(web.requests)
        time.sleep(5)
        assert len(web.requests) - asked <= 5
        Store(store).activate("v5")
        assert server.wait_for("bundle_swapped")["version"] == "v5"
        server.uids("bread")  # from now on, it is not idle
        asked = len(web.requests)
        Store(store).rollback()
        until(lambda: server.version() == "v3")
        assert len(web.requests) > asked
