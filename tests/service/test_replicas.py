"""Replicas write reports to the folder of their store, and `wait` reads the reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.errors import NotServedError
from service.store.store import Store
from service.versions.activation import Activation
from service.versions.replicas import FolderReplicas, Refusal, Report, replica_name, shorten
from tests.service.http_helpers import PATIENCE_SECONDS, flip_bit, serving

SINCE = datetime(2026, 1, 2, tzinfo=UTC)
POLLS = ("--poll-seconds", "0.05")


def report(version: str = "v3", **changes: object) -> Report:
    return Report(replica=replica_name(), state="serving", version=version, since=SINCE).model_copy(update=changes)


def test_new_report_replaces_a_longer_old_report_completely(tmp_path: Path) -> None:
    replicas = FolderReplicas(tmp_path / "replicas")
    assert replicas.reports() == []
    for written in (report(refused=Refusal(version="v5", error=shorten("\x01" * 9_000), at=SINCE)), report("v5")):
        replicas.report(written)
        assert replicas.reports() == FolderReplicas(tmp_path / "replicas").reports() == [written]
    replicas.leave()
    assert replicas.reports() == []
    assert list((tmp_path / "replicas").iterdir()) == []


def test_replica_writes_its_report_again_if_the_file_was_removed(tmp_path: Path) -> None:
    replicas = FolderReplicas(tmp_path)
    replicas.report(report())
    for path in tmp_path.iterdir():
        path.unlink()
    replicas.report(report())
    assert FolderReplicas(tmp_path).reports() == [report()]


def test_wait_ignores_an_old_refusal_of_a_version_that_was_repaired(store: Path) -> None:
    encoder = store / "bundles" / "v5" / "encoder.onnx"
    content = encoder.read_bytes()
    encoder.write_bytes(b"broken")
    with serving(
        store, *POLLS, prelude="from service.versions import model_manager\nmodel_manager._RETRY_SECONDS = 1.0"
    ) as server:
        Activation(Store(store), None).activate("v5")
        server.wait_for("bundle_refused")
        encoder.write_bytes(content)
        again = Activation(Store(store), None)
        again.activate("v5")
        assert [each.version for each in again.wait("v5", PATIENCE_SECONDS)] == ["v5"]


def test_report_file_of_a_killed_replica_is_removed(tmp_path: Path) -> None:
    code = f"""
import sys, time
from datetime import datetime, UTC
from pathlib import Path
from service.versions.replicas import FolderReplicas, Report, replica_name
replicas = FolderReplicas(Path({str(tmp_path)!r}))
replicas.report(Report(replica=replica_name(), state="serving", version="v3", since=datetime.now(UTC)))
print(flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [each.version for each in FolderReplicas(tmp_path).reports()] == ["v3"]
        process.kill()
    assert FolderReplicas(tmp_path).reports() == []
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_not_a_valid_report_is_ignored(tmp_path: Path) -> None:
    replicas = FolderReplicas(tmp_path)
    replicas.report(report())
    (tmp_path / "noise.json").write_text("{")
    assert replicas.reports() == [report()]


def test_wait_error_names_the_replica_that_refuses_the_version_and_its_reason(store: Path) -> None:
    flip_bit(store / "bundles" / "v5" / "label_keys.faiss")
    with serving(store, *POLLS):
        activation = Activation(Store(store), None)
        activation.activate("v5")
        with pytest.raises(
            NotServedError, match=r"1 of 1 replicas do not serve it:\n  .* serves v3: .*label_keys.faiss"
        ):
            activation.wait("v5", PATIENCE_SECONDS)
        assert activation.rollback() == "v3"
        assert [each.version for each in activation.wait("v3", PATIENCE_SECONDS)] == ["v3"]


def test_wait_error_says_that_no_replica_is_running(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.versions.activation._NO_REPLICA_SECONDS", 0.2)
    with pytest.raises(NotServedError, match="v5 is current, but no replica reports"):
        Activation(Store(store), None).wait("v5", PATIENCE_SECONDS)


def test_wait_error_names_the_replica_that_does_not_open_the_version_in_time(store: Path) -> None:
    with serving(store, "--poll-seconds", "600"):
        activation = Activation(Store(store), None)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not activation.replicas.reports():
            assert time.monotonic() < deadline
        activation.activate("v5")
        with pytest.raises(NotServedError, match="serves v3: it has not opened the new version yet"):
            activation.wait("v5", 0.3)


def test_store_is_served_even_if_reports_cannot_be_written_to_it(store: Path) -> None:
    (store / "replicas").write_text("in the way")
    with serving(store, *POLLS) as server:
        assert "replicas" in server.wait_for("report_unwritable")["error"]
        Store(store).activate("v5")
        assert server.wait_for("bundle_swapped")["version"] == "v5"


def test_replica_removes_its_report_when_it_stops(store: Path) -> None:
    with serving(store, *POLLS) as server:
        while not (store / "replicas").is_dir() or not list((store / "replicas").iterdir()):
            time.sleep(0.02)
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
    assert list((store / "replicas").iterdir()) == []
