"""`recollect serve --compact-at`: the service compacts its live memory by itself."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from recollect.service.errors import CompactionRunningError, SettingsError
from recollect.service.memory.entries import PutCorrection, PutInstance, RemoveInstance
from recollect.service.memory_log.log import number
from recollect.service.model import open_model
from recollect.service.process import compactions
from recollect.service.process.compactions import require_builder
from recollect.service.serve_settings import ServeSettings, require_consistent
from recollect.service.storage.control_files import FolderFiles
from recollect.service.store.compaction_lease import compaction_holder, compaction_lease
from recollect.service.store.store import Store
from recollect.service.telemetry.metrics import Metrics
from tests.conftest import Built
from tests.service.http_helpers import PATIENCE_SECONDS, Server, copy_store, serving
from tests.service.light_stores import until_serves
from tests.service.redis_server import until

WRITER = "writer-0123456789abcdef"


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    keys = tmp_path / "keys"
    keys.write_text(f"writer {WRITER} write\n")
    return ("--api-keys", str(keys), "--writable", "--delta-keys", "40", "--compact-at", "4")


def client_of(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"X-API-Key": WRITER}, timeout=30)


def put_labels(client: httpx.Client, *uids: str) -> None:
    labels = [{"uid": uid, "text": f"All about {uid}"} for uid in uids]
    response = client.post("/memory/labels", json={"labels": labels})
    assert response.status_code == 200, response.text


def live_keys(client: httpx.Client) -> int:
    keys: int = client.get("/memory").json()["live_keys"]
    return keys


@pytest.mark.slow
def test_one_of_two_replicas_compacts_and_both_serve_the_new_version(
    built: Built, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    store = Store(copy_store(built.store, tmp_path / "store"))
    with (
        serving(store.root, *flags, "--workers", "2") as one,
        serving(store.root, *flags) as other,
        client_of(one) as client,
        client_of(other) as second,
    ):
        instance = {"uid": "heavy", "text": "Two whales", "labels": ["Law"], "weight": 3.0}
        assert client.post("/memory/instances", json={"instances": [instance]}).status_code == 200
        put_labels(client, "Whales", "Seals", "Otters")
        before = client.post("/predict", json={"query": "whales and seals", "top_k": 30}).json()["labels"]
        put_labels(second, "Bears")

        def published() -> list[dict[str, Any]]:
            return one.events("compaction_published") + other.events("compaction_published")

        until(lambda: len(published()) == 1)
        version = published()[0]["version"]
        assert version == store.current() != built.version
        for each in (client, second):
            until_serves(each, version)
            assert live_keys(each) == 1  # a bundle has no weights
            after = each.post("/predict", json={"query": "whales and seals", "top_k": 30}).json()["labels"]
            assert {"Whales", "Bears", "Law"} <= {label["uid"] for label in after}
            assert after[0]["uid"] == before[0]["uid"]
        metrics = [client.get("/metrics").text, second.get("/metrics").text]
        assert sum('recollect_compactions_total{result="published"} 1.0' in text for text in metrics) == 1
        until(lambda: compaction_holder(store.files) is None)  # the compacting process ends after the publication
        assert not one.events("compaction_failed") + other.events("compaction_failed")


@pytest.mark.slow
def test_failed_compaction_is_told_and_changes_continue_and_the_service_stops_a_compaction(
    built: Built, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    store, temporary = copy_store(built.store, tmp_path / "store"), tmp_path / "temporary"
    temporary.mkdir()
    variables = {"RECOLLECT_RUN": str(tmp_path / "missing"), "TMPDIR": str(temporary)}
    with serving(store, *flags, **variables) as server, client_of(server) as client:
        put_labels(client, "Whales", "Seals", "Otters", "Bears")
        failed = server.wait_for("compaction_failed")
        assert "missing" in failed["error"]
        assert failed["again_in_seconds"] == 60
        put_labels(client, "Wolves")
        assert live_keys(client) == 5
        assert client.post("/predict", json={"query": "wolves"}).json()["labels"][0]["uid"] == "Wolves"
        assert 'recollect_compactions_total{result="failed"} 1.0' in client.get("/metrics").text
    with serving(store, *flags, TMPDIR=str(temporary)) as server:
        server.wait_for("compaction_started")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_SECONDS) == 0
        assert server.events("compaction_stopped")
    assert Store(store).current() == built.version
    assert not list(temporary.glob("recollect-*"))


def test_only_one_process_holds_the_lease_and_a_killed_one_loses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FolderFiles(tmp_path)
    assert compaction_holder(files) is None
    killed = json.dumps({"holder": "elsewhere:1", "renewed": time.time()})
    (tmp_path / "COMPACTION").write_text(killed)
    with (
        pytest.raises(CompactionRunningError, match="found that elsewhere:1 compacts this store"),
        compaction_lease(files),
    ):
        pass
    assert compaction_holder(files) == "elsewhere:1"
    later = time.time() + 61
    monkeypatch.setattr("recollect.service.store.compaction_lease.time.time", lambda: later)
    with compaction_lease(files):
        assert compaction_holder(files) not in (None, "elsewhere:1")
    assert compaction_holder(files) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", "{", '{"holder": "x", "renewed": "soon"}', "[" * 100_000])
def test_damaged_lease_is_no_lease(tmp_path: Path, content: str) -> None:
    (tmp_path / "COMPACTION").write_text(content)
    with compaction_lease(FolderFiles(tmp_path)):
        pass


def test_killed_compaction_has_failed_although_its_lease_has_not_ended(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(copy_store(built.store, tmp_path / "store"))
    program = (
        "import os, signal; from pathlib import Path; from recollect.service.storage.control_files import FolderFiles; "
        "from recollect.service.store.compaction_lease import compaction_lease; "
        "lease = compaction_lease(FolderFiles(Path(os.environ['RECOLLECT_STORE']))); lease.__enter__(); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    monkeypatch.setattr(compactions, "_PROGRAM", program)
    metrics = Metrics()
    open_versions: Any = None  # a started compaction does not need them
    running = compactions._Compactions(ServeSettings(store=store.root), 1, store, open_versions, metrics)
    record = store.activation()
    assert record is not None
    with capture_logs() as logs:
        running._start(record.generation)
        assert running._running is not None
        running._running.process.wait()
        running.step()
    assert compaction_holder(store.files) is not None
    assert [each["event"] for each in logs] == ["compaction_started", "compaction_failed"]
    assert logs[1]["status"] == -signal.SIGKILL
    assert metrics.compactions.labels("failed")._value.get() == 1


def test_weighted_instances_and_corrections_are_no_reason_to_compact(built: Built) -> None:
    model = open_model(built.store, live="off")
    (vector,) = model.predictor.encode(["whales"])

    def kept(*entries: Any) -> tuple[int, int]:
        view = model.predictor.apply(number(entries, model.predictor.memory.sequence + 1)).view
        assert view is not None
        return view.status.live_keys, view.status.kept_keys

    heavy = PutInstance("heavy", "whales", ["Law"], vector, 2.0)
    assert kept(PutInstance("light", "whales", ["Law"], vector)) == (1, 0)
    assert kept(heavy, PutCorrection("no", "whales", "Law", vector)) == (3, 2)
    assert kept(heavy) == (4, 2)
    assert kept(RemoveInstance("heavy")) == (4, 1)


def test_contradicting_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(**given: Any) -> ServeSettings:
        return ServeSettings(store=tmp_path, api_keys=tmp_path / "keys", **given)

    with pytest.raises(SettingsError, match="--compact-at: needs --writable"):
        require_consistent(settings(compact_at=5))
    with pytest.raises(SettingsError, match=r"--compact-at: must be less than --delta-keys \(5\).*found 5"):
        require_consistent(settings(compact_at=5, delta_keys=5, writable=True))
    require_consistent(settings(compact_at=4, delta_keys=5, writable=True))
    require_builder()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(SettingsError, match="--compact-at: needs torch; pip install"):
        require_builder()
