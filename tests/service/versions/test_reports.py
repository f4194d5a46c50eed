"""Replicas write reports to their store or to Redis, and `wait` reads the reports."""

from __future__ import annotations

import os
import time
from pathlib import Path

import httpx
import pytest

from recollect.core.errors import NotServedError
from recollect.service.redis_client import RedisClient
from recollect.service.versions.reports import FolderReports, RedisReports, Report, replica_name
from recollect.store.store import Store
from tests import forked
from tests.processes import PATIENCE_SECONDS, metric, run, serving, until
from tests.service.redis_server import RedisServer, needs_redis, replica
from tests.service.stores import TOP_K, Activation, flip_bit
from tests.store.servers import WebServer

POLLS = ("--poll-seconds", "0.05")


def report(version: str = "v3", name: str | None = None, generation: int = 1, problem: str | None = None) -> Report:
    return Report(
        replica=name or replica_name(), version=version, open=(version,), generation=generation, problem=problem
    )


@needs_redis
def test_wrong_content_in_redis_is_ignored_and_the_time_of_a_replica_does_not_matter(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = RedisReports(RedisClient(redis_server.url, "recollect"))
    now = time.time
    for shift in (-86_400.0, 86_400.0):
        monkeypatch.setattr("time.time", lambda shift=shift: now() + shift)
        reports.write(report())
        for name, content in {"a": "", "b": "x {}", "c": f"{now()} []", "d": f"0 {report().model_dump_json()}"}.items():
            redis_server.client().hset("recollect:reports", name, content)
        assert reports.read() == [report()]


def wait_for(store: Path, version: str, *written: Report, **arguments: int) -> list[Report]:
    """Activate a version, let replicas report, and wait."""
    activation = Activation(Store(store), None)
    record = activation.activate(version)
    for each in written:
        activation.reports.write(each)
    return activation.wait(record, 1.0, **arguments)


def test_wait_expects_every_replica_that_reports_or_a_given_number(store: Path) -> None:
    first, second = report("v5", "host-1-ab", generation=2), report("v3", "host-2-cd", generation=1)
    behind = r"1 of 2 replicas have not opened it:\n  host-2-cd serves v3: it has not .* yet \(generation 1\)"
    with pytest.raises(NotServedError, match=behind):
        wait_for(store, "v5", first, second)
    both = [each.model_copy(update={"generation": 3}) for each in (first, second)]
    assert wait_for(store, "v5", *both) == both
    with pytest.raises(NotServedError, match="only 2 of 3 replicas report"):
        wait_for(store, "v5", *[each.model_copy(update={"generation": 4}) for each in both], replicas=3)


def test_wait_fails_if_a_replica_is_killed_and_a_stale_report_does_not_count_later(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: float) -> None:
        """In place of a pause of the activation: make the report of the replica old."""
        long_ago = time.time() - 20
        os.utime(store / "replicas" / "host-1-ab.json", (long_ago, long_ago))

    monkeypatch.setattr("time.sleep", killed)
    with pytest.raises(NotServedError, match=r"host-1-ab stopped reporting: it was killed, or it hangs"):
        wait_for(store, "v5", report("v5", "host-1-ab"))
    done = report("v3", "host-2-cd", generation=3)
    assert wait_for(store, "v3", done) == [done]


def test_wait_error_names_the_replica_that_refuses_the_version_and_its_reason(store: Path) -> None:
    encoder = store / "bundles" / "v5" / "encoder.onnx"
    content = encoder.read_bytes()
    flip_bit(encoder)
    with serving(store, *POLLS) as server:
        activation = Activation(Store(store), None)
        record = activation.activate("v5")
        with pytest.raises(NotServedError, match=r"1 of 1 replicas have not .*:\n  .* serves v3: .*encoder.onnx"):
            activation.wait(record, PATIENCE_SECONDS)
        (failed,) = activation.reports.read()
        assert (failed.version, failed.generation, failed.refused) == ("v3", 1, record.generation)
        encoder.write_bytes(content)
        record = activation.activate("v5")  # is tried at once
        assert [each.version for each in activation.wait(record, PATIENCE_SECONDS)] == ["v5"]
        back = activation.rollback()
        assert [(each.version, each.generation) for each in activation.wait(back, PATIENCE_SECONDS)] == [("v3", 4)]
        assert len(server.events("bundle_refused")) == 1


def test_store_is_served_even_if_reports_cannot_be_written_to_it(store: Path) -> None:
    (store / "replicas").write_text("in the way")
    with serving(store, *POLLS) as server:
        assert "replicas" in server.wait_for("report_unwritable")["error"]
        Store(store).activate("v5")
        assert server.wait_for("bundle_swapped")["version"] == "v5"


def test_reports_follow_no_link_and_wait_for_no_pipe(store: Path, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", store / "replicas"
    victim.write_text("precious")
    with serving(store, *POLLS):
        own = until(lambda: next(folder.glob("*.json"), None))
        (folder / f".{own.stem}").symlink_to(victim)
        (folder / "host-1-ab.json").symlink_to(victim)
        os.mkfifo(folder / "host-2-cd.json")
        activation = Activation(Store(store), None)
        waited = activation.wait(activation.activate("v5"), PATIENCE_SECONDS)
        assert [each.replica for each in waited] == [own.stem]
        assert own.is_file()
        assert not own.is_symlink()
    assert victim.read_text() == "precious"


def test_old_files_that_are_no_reports_are_not_removed(tmp_path: Path) -> None:
    reports, (notes, stale) = FolderReports(tmp_path), (tmp_path / "notes.json", tmp_path / "host-1-ab.json")
    notes.write_text("{}")
    reports.write(report(name=stale.stem))
    for path in (notes, stale):
        os.utime(path, (0, 0))
    assert reports.read() == []
    assert (notes.exists(), stale.exists()) == (True, False)


# Runs a verb on a host whose clock differs by the seconds of the first argument.
OTHER_CLOCK = """
import sys, time
own, seconds = time.time, float(sys.argv.pop(1))
time.time = lambda: own() + seconds
import recollect
sys.exit(recollect.main())
"""


def test_clock_of_the_host_that_waits_may_differ(store: Path) -> None:
    with serving(store, *POLLS) as server:
        for seconds, version in ((-90, "v5"), (15, "v3"), (90, "v5")):
            forked.run_code(OTHER_CLOCK, seconds, "activate", version, "--store", store, "--wait")
            assert server.version() == version
            assert len(FolderReports(store / "replicas").read()) == 1  # the report of the replica was not removed


@needs_redis
def test_wait_reads_the_reports_of_all_replicas_in_redis(store: Path, redis_server: RedisServer) -> None:
    flags = ("--store", store, "--redis-url", redis_server.url, "--wait")
    with replica(store, redis_server, *POLLS) as (_, first), replica(store, redis_server, *POLLS) as (_, second):
        assert run("activate", "v5", *flags).stdout == "v5\n"
        for client in (first, second):
            answer = client.post("/predict", json={"query": "bread"}).json()
            assert (answer["version"], len(answer["labels"])) == ("v5", TOP_K["v5"])
        run("rollback", *flags)
        assert {client.get("/version").json()["version"] for client in (first, second)} == {"v3"}
        assert metric(first, 'recollect_generation{source="served"}') == 3
        assert metric(first, 'recollect_generation{source="store"}') == 3


@needs_redis
def test_replica_starts_and_swaps_with_a_store_on_a_web_server_that_cannot_list_folders(
    store: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    web = WebServer(store)
    flags = (*POLLS, "--bundle-cache", str(tmp_path / "cache"))
    with web.running(), serving(web.url, *flags, RECOLLECT_REDIS_URL=redis_server.url) as server:
        assert httpx.get(f"{server.url}/version").json()["version"] == "v3"
        Store(store).activate("v5")
        assert server.wait_for("bundle_swapped")["version"] == "v5"
