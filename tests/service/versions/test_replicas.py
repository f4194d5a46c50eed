"""Replicas write reports to the folder of their store, and `wait` reads the reports."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from recollect.service.errors import NotServedError
from recollect.service.store.store import Store
from recollect.service.telemetry.metrics import Metrics
from recollect.service.versions.activation import Activation
from recollect.service.versions.open_versions import OpenVersions
from recollect.service.versions.replicas import FolderReplicas, Seen, reports
from recollect.service.versions.reporter import Reporter
from recollect.service.versions.reports import Refusal, Report, replica_name, shorten
from tests.service.http_helpers import PATIENCE_SECONDS, flip_bit, serving
from tests.service.redis_server import until

SINCE = datetime(2026, 1, 2, tzinfo=UTC)
POLLS = ("--poll-seconds", "0.05")


def report(version: str = "v3", **changes: object) -> Report:
    first = Report(replica=replica_name(), state="serving", version=version, generation=1, since=SINCE)
    return first.model_copy(update=changes)


def test_new_report_replaces_a_longer_old_report_completely(tmp_path: Path) -> None:
    replicas = FolderReplicas(tmp_path / "replicas")
    assert reports(replicas) == []
    for written in (report(refused=Refusal(version="v5", error=shorten("\x01" * 9_000), at=SINCE)), report("v5")):
        replicas.report(written)
        assert reports(replicas) == reports(FolderReplicas(tmp_path / "replicas")) == [written]
    replicas.leave()
    assert replicas.seen() == []
    assert list((tmp_path / "replicas").iterdir()) == []


def test_replica_writes_its_report_again_if_the_file_was_removed(tmp_path: Path) -> None:
    replicas = FolderReplicas(tmp_path)
    replicas.report(report())
    for path in tmp_path.iterdir():
        path.unlink()
    replicas.report(report())
    assert reports(FolderReplicas(tmp_path)) == [report()]


@contextlib.contextmanager
def other_replica(registry: str, state: str, code: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process that reports version v5 in generation 2 with this state; `registry` is the code of its registry."""
    program = f"""
{code}
import time
from datetime import datetime, UTC
from pathlib import Path
from recollect.service.redis_client import RedisClient
from recollect.service.versions.replicas import FolderReplicas, RedisReplicas
from recollect.service.versions.reports import Report, replica_name
report = Report(replica=replica_name(), state={state!r}, version="v5", generation=2, since=datetime.now(UTC))
replicas = {registry}
replicas.report(report)
print(flush=True)
while True:
    time.sleep(0.2)
    replicas.report(report)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_killed_replica_is_remembered_for_a_minute_and_then_its_file_is_removed(tmp_path: Path) -> None:
    replicas = FolderReplicas(tmp_path)
    with other_replica(f"FolderReplicas(Path({str(tmp_path)!r}))", "serving") as process:
        (seen,) = replicas.seen()
        assert seen.report is not None
        assert seen.report.version == "v5"
        process.kill()
        process.wait()
    assert replicas.seen() == [Seen(seen.replica, None)]
    (path,) = tmp_path.iterdir()
    for seconds in (-61, 61):  # a minute ago; or in the future, because the clock was set back
        os.utime(path, (time.time() + seconds,) * 2)
        assert replicas.seen() == []
        assert list(tmp_path.iterdir()) == []
        path.touch()


def test_report_of_a_running_replica_counts_whatever_the_time_of_its_file_is(tmp_path: Path) -> None:
    replicas = FolderReplicas(tmp_path)
    replicas.report(report())
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    assert reports(FolderReplicas(tmp_path)) == [report()]


def test_file_that_is_not_a_valid_report_is_ignored(tmp_path: Path) -> None:
    replicas = FolderReplicas(tmp_path)
    replicas.report(report())
    (tmp_path / "noise.json").write_text("{")
    (tmp_path / "\x1b[2J.json").write_text("{")
    assert reports(replicas) == [report()]


@pytest.fixture
def in_folder(store: Path) -> str:
    (store / "replicas").mkdir(exist_ok=True)
    return f"FolderReplicas(Path({str(store / 'replicas')!r}))"


@pytest.mark.parametrize("state", ["opening", "serving", "failed"])
def test_wait_fails_if_a_replica_is_killed_in_any_state(
    store: Path, in_folder: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.service.versions.activation._LOST_SECONDS", 0.2)
    activation = Activation(Store(store), None)
    record = activation.activate("v5")
    with other_replica(in_folder, "serving"), other_replica(in_folder, state) as killed:
        killed.kill()
        killed.wait()
        lost = rf"v5 is current, but 1 of 2 replicas do not serve it:\n  \S+-{killed.pid}-\w+ stopped reporting: it was"
        with pytest.raises(NotServedError, match=lost):
            activation.wait(record, PATIENCE_SECONDS)
        assert len(activation.wait(record, PATIENCE_SECONDS, 1)) == 1
        with pytest.raises(NotServedError, match="1 of 2 replicas do not serve it:\n  only 1 of 2 replicas report"):
            activation.wait(record, 1.0, 2)


def test_wait_does_not_expect_a_replica_that_drains(store: Path, in_folder: str) -> None:
    activation = Activation(Store(store), None)
    record = activation.activate("v5")
    with other_replica(in_folder, "serving"), other_replica(in_folder, "draining") as killed:
        assert len(activation.wait(record, PATIENCE_SECONDS)) == 1
        killed.kill()


def test_wait_fails_at_once_if_another_version_is_activated(
    store: Path, in_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    activation = Activation(Store(store), None)
    record = activation.activate("v3")
    monkeypatch.setattr("recollect.service.versions.activation._RECORD_SECONDS", 0.1)
    activation.activate("v5", by="ann@host")
    with (
        other_replica(in_folder, "serving"),
        pytest.raises(NotServedError, match=r"v3 is not current any more: ann@host made v5 current \(generation 3\)"),
    ):
        activation.wait(record, PATIENCE_SECONDS)


def test_wait_ignores_an_old_refusal_of_a_version_that_was_repaired(store: Path) -> None:
    encoder = store / "bundles" / "v5" / "encoder.onnx"
    content = encoder.read_bytes()
    encoder.write_bytes(b"broken")
    with serving(store, *POLLS) as server:
        activation = Activation(Store(store), None)
        activation.activate("v5")
        server.wait_for("bundle_refused")
        encoder.write_bytes(content)
        record = activation.activate("v5")
        assert [each.version for each in activation.wait(record, PATIENCE_SECONDS)] == ["v5"]


def test_wait_error_names_the_replica_that_refuses_the_version_and_its_reason(store: Path) -> None:
    flip_bit(store / "bundles" / "v5" / "label_keys.faiss")
    with serving(store, *POLLS) as server:
        server.wait_for("serving")
        activation = Activation(Store(store), None)
        record = activation.activate("v5")
        with pytest.raises(
            NotServedError, match=r"1 of 1 replicas do not serve it:\n  .* serves v3: .*label_keys.faiss"
        ):
            activation.wait(record, PATIENCE_SECONDS)
        (failed,) = reports(activation.replicas)
        assert (failed.state, failed.generation, failed.version) == ("failed", record.generation, "v3")
        back = activation.rollback()
        assert [(each.version, each.generation) for each in activation.wait(back, PATIENCE_SECONDS)] == [("v3", 3)]


def test_wait_error_says_that_no_replica_is_running(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.service.versions.activation._NO_REPLICA_SECONDS", 0.2)
    activation = Activation(Store(store), None)
    with pytest.raises(NotServedError, match="v5 is current, but no replica reports"):
        activation.wait(activation.activate("v5"), PATIENCE_SECONDS)


def test_wait_error_names_the_replica_that_does_not_open_the_version_in_time(store: Path) -> None:
    with serving(store, "--poll-seconds", "600"):
        activation = Activation(Store(store), None)
        record = activation.activate("v5")
        with pytest.raises(NotServedError, match=r"serves v3: it has not opened the new version yet \(generation 1\)"):
            activation.wait(record, 0.3)


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


class Blocked(FolderReplicas):
    """A registry that does not answer until `answers` is set."""

    answers = threading.Event()

    def leave(self) -> None:
        self.answers.wait(PATIENCE_SECONDS)
        super().leave()


def test_exit_does_not_wait_for_a_registry_that_does_not_answer(tmp_path: Path) -> None:
    replicas = Blocked(tmp_path)
    replicas.report(report())
    reporter = Reporter(replicas, OpenVersions(Metrics().by_version), Metrics())
    reporter.withdraw(0.05)
    assert len(replicas.seen()) == 1
    replicas.answers.set()
    until(lambda: not replicas.seen())
