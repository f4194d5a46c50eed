"""Retention: `recollect prune` removes old versions, and keeps every version that is still needed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import recollect
from recollect.core.errors import StoreError
from recollect.store.store import Store
from tests import forked
from tests.processes import copy_store, serving
from tests.service.stores import add_version, light_encoder
from tests.store.servers import publish

VERSIONS = "ABCDEF"
# Program that removes a version, and is killed before the files of the version are removed.
KILLED = """
import os, signal, sys
from pathlib import Path
from recollect.store.files import FolderFiles
from recollect.store.store import Store
FolderFiles.delete_folder = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Store(Path(sys.argv[1])).remove("A", lambda: True)
"""
DAY = 86_400


@pytest.fixture
def bundles(tmp_path: Path, write_bundle: Callable[..., Path]) -> Path:
    for version in VERSIONS:
        write_bundle(tmp_path / "bundles" / version, version)
    return tmp_path / "bundles"


@pytest.fixture(params=["folder", "url"])
def store(request: pytest.FixtureRequest, bundles: Path, tmp_path: Path) -> Store:
    """A store with versions A to F, in a folder or in a bucket; B is current, and A was current before."""
    location = tmp_path / "store" if request.param == "folder" else request.getfixturevalue("url")
    store = Store(location, None, tmp_path / "cache")
    for version in VERSIONS:
        publish(store, bundles / version, version)
    store.activate("A")
    store.activate("B")
    return store


def pruned(store: Store, keep: int, *in_use: str) -> list[str]:
    return [version for version, _ in store.prune(keep, lambda: in_use)]


def test_prune_keeps_newest_current_previous_candidate_and_used_versions(store: Store) -> None:
    store.activate("D", candidate=True)
    size_bytes = store.manifest("E").size_bytes
    ((removed, removed_bytes),) = store.prune(1, lambda: {"C"})
    assert removed == "E"
    assert removed_bytes > size_bytes  # the manifest is a file too
    assert store.versions() == ["A", "B", "C", "D", "F"]
    assert [store.rollback().version, store.rollback().version] == ["B", "A"]
    assert store.open("A").manifest.version == "A"


def test_version_of_a_builder_whose_clock_is_late_counts_as_new(
    store: Store, tmp_path: Path, write_bundle: Callable[..., Path]
) -> None:
    time.sleep(1.1)  # object stores count whole seconds
    publish(store, write_bundle(tmp_path / "late", "A-late"), "A-late")
    assert pruned(store, 1) == ["C", "D", "E"]  # the current one, its predecessor, the last name and the last built
    assert store.versions() == ["A", "A-late", "B", "F"]


def test_version_that_is_activated_while_prune_runs_is_kept(store: Store) -> None:
    calls = 0

    def activate_meanwhile() -> set[str]:
        nonlocal calls
        calls += 1
        if calls == 3:  # after the first check of C, and before its removal
            store.activate("C")
        return set()

    assert [version for version, _ in store.prune(1, activate_meanwhile)] == ["D", "E"]
    assert store.current() == "C"
    assert store.open("C").manifest.version == "C"
    assert store.rollback().version == "B"


def test_version_that_becomes_used_during_its_removal_is_published_again(store: Store) -> None:
    def is_unused() -> bool:  # until the manifest is removed
        return "C" in store.versions()

    assert not store.remove("C", is_unused)
    assert store.open("C").manifest.version == "C"


def test_prune_refuses_to_run_if_the_current_version_is_unknown(store: Store) -> None:
    store.files.create("activations/00000003.json", b"{}")
    with pytest.raises(StoreError, match="00000003.json: expected an activation record"):
        pruned(store, 1)
    assert store.versions() == list(VERSIONS)


def test_version_that_is_removed_during_its_activation_does_not_stay_current(store: Store) -> None:
    create = store.files.create

    def create_slowly(name: str, content: bytes) -> bool:
        """Version C is removed after its manifest was read, and right before its activation is written."""
        if b'"version": "C"' in content:
            assert store.remove("C", lambda: store.current() != "C")
        return create(name, content)

    store.files.create = create_slowly  # type: ignore[method-assign]
    with pytest.raises(
        StoreError, match="bundles/C: expected a published version, but it was removed .*; B is current"
    ):
        store.activate("C")
    assert store.current() == "B"
    assert [record.version for record in store.log()] == ["A", "B", "C", "B"]
    assert store.log()[-1].why == "C was removed at the same time"
    assert store.rollback().version == "A"


def test_removal_that_was_killed_leaves_no_version_and_is_completed_later(bundles: Path, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.activate("C")
    assert forked.run_code(KILLED, tmp_path, check=False).returncode == -signal.SIGKILL
    assert store.versions() == list(VERSIONS)[1:]
    assert pruned(store, 5) == []
    assert (bundles / "A").exists()  # a copy by another host looks the same
    make_old(bundles / "A")
    assert pruned(store, 5) == []
    assert not (bundles / "A").exists()


def test_prune_removes_no_bundle_that_another_host_is_writing(bundles: Path, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for path in (bundles / "A", bundles / "B"):  # half-copied bundles
        (path / "manifest.json").unlink()
        make_old(path)
    (bundles / "B" / "keys").write_bytes(b"new")
    with store.incoming() as folder, store.incoming() as abandoned:
        make_old(abandoned)
        make_old(folder)
        (folder / "keys").write_bytes(b"new")
        assert pruned(store, 9) == []
        assert (folder.exists(), abandoned.exists()) == (True, False)
    assert sorted(path.name for path in bundles.iterdir()) == list(VERSIONS)[1:]
    with pytest.raises(StoreError, match=r"bundles/B: expected a bundle with manifest.json, found one without: a copy"):
        store.activate("B")


def test_only_old_files_of_interrupted_uploads_are_removed(
    url: str, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(url, None, tmp_path / "cache")
    publish(store, bundles / "A", "A")
    store.files.upload(bundles / "B" / "golden.json", "bundles/B/golden.json")
    assert pruned(store, 1) == []
    assert store.files.has("bundles/B/golden.json")
    monkeypatch.setattr("recollect.store.store.MAX_WRITE_AGE", timedelta(seconds=-60))
    assert pruned(store, 1) == []
    assert not store.files.has("bundles/B/golden.json")
    assert store.open("A").manifest.version == "A"


def make_old(folder: Path) -> None:
    """Let a folder look as if nobody had written to it for three days."""
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - 3 * DAY,) * 2)


def test_command_keeps_the_version_that_a_running_replica_serves(
    light_versions: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    folder = copy_store(light_versions, tmp_path / "store")
    for version in ("v6", "v7", "v8"):
        add_version(folder, "light", version, light_encoder)
    Store(folder).activate("v3")
    with serving(folder, "--poll-seconds", "3600"):  # the replica notices no activation
        Store(folder).activate("v6")
        Store(folder).activate("v7")
        printed = run("prune", "--keep", "1", "--store", folder)
        assert "v5" in printed
        assert Store(folder).versions() == ["v3", "v6", "v7", "v8"]
    printed = run("prune", "--keep", "1", "--store", folder)
    assert [line.split()[0] for line in printed.splitlines()] == ["v3"]
    assert Store(folder).versions() == ["v6", "v7", "v8"]


def test_command_removes_nothing_if_the_reports_in_redis_cannot_be_read(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--store", store.name, "--bundle-cache", str(tmp_path / "cache"), "--redis-url", "redis://127.0.0.1:1"]
    assert recollect.main(["prune", "--keep", "1", *flags]) == 1
    assert "Redis" in capsys.readouterr().err
    assert store.versions() == list(VERSIONS)
