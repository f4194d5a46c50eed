"""Removal of old segments of a log, and copies of a log in other stores."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.service.errors import MemoryLogError
from recollect.service.memory.entries import LoggedEntry, PutLabel
from recollect.service.memory_log import object_segments
from recollect.service.memory_log.copying import copy_log
from recollect.service.memory_log.folder_segments import FolderSegments
from recollect.service.memory_log.log import MemoryLog
from recollect.service.memory_log.object_segments import ObjectSegments
from recollect.service.memory_log.retention import last_entry, prune_log, removed_entries
from recollect.service.memory_log.segments import SegmentFile
from recollect.service.storage.object_folder import ObjectFolder
from recollect.service.store.remote import RemoteStore
from recollect.service.store.store import Store
from tests.service.http_helpers import add_version
from tests.service.memory_log.logs import append, is_same, uids
from tests.service.store.servers import WebServer, create_bucket, s3_server


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderSegments, "max_bytes", 1)


@pytest.fixture
def folder(store: Path) -> Store:
    """A store with the versions v3, which is current, and v5."""
    return Store(store)


def log_of(store: Store, version: str = "v3") -> MemoryLog:
    return MemoryLog.of(store, store.manifest(version))


def labels(store: Store, *names: str) -> list[PutLabel]:
    dim = store.manifest("v3").dim
    return [PutLabel(name, f"text of {name}", np.full(dim, dim**-0.5, dtype=np.float32)) for name in names]


def write(store: Store, *names: str) -> list[LoggedEntry]:
    """Write a label in each group, and return all entries of the log."""
    log = log_of(store)
    for name in names:
        append(log, *labels(store, name))
    return log_of(store).read()


def containing(sequence: int) -> Callable[[Path, dict[str, Any]], None]:
    def change(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["memory_sequence"] = sequence

    return change


def others(store: Store, *kept: str) -> set[str]:
    """The versions of a store, without some."""
    return {*store.versions()} - {*kept}


def names(removed: list[SegmentFile]) -> list[int]:
    return [segment.first for segment in removed]


def test_segments_that_no_version_needs_are_removed(folder: Store, tmp_path: Path) -> None:
    entries = write(folder, "a", "b", "c", "d")
    for version, sequence in (("new", 3), ("newer", 4)):
        add_version(folder.root, "v3", version, containing(sequence))
    assert names(list(prune_log(folder))) == []  # v3 and v5 need all entries
    assert names(list(prune_log(folder, others(folder, "new", "newer"), dry_run=True))) == [1, 2, 3]
    assert removed_entries(folder) == 0
    follower = log_of(folder, "newer")
    assert follower.read() == []
    folder.activate("new")
    for version in others(folder, "new", "newer"):
        shutil.rmtree(folder.bundles / version)
    for segment in prune_log(folder):
        assert segment.size_bytes > 0
        assert segment.first == 1
        break  # interrupted after the first segment
    assert uids(log_of(folder, "new").read()) == ["d"]
    assert names(list(prune_log(folder))) == [2, 3]
    assert (removed_entries(folder), last_entry(folder)) == (3, 4)
    assert all(map(is_same, entries[3:], log_of(folder, "new").read()))
    assert follower.read() == []
    append(follower, *[PutLabel("e", "text", np.full(folder.manifest("new").dim, 0.1, dtype=np.float32))])
    assert uids(log_of(folder, "new").read()) == ["d", "e"]


def test_replica_of_a_store_at_a_web_server_finds_the_first_segment_that_is_left(folder: Store, tmp_path: Path) -> None:
    write(folder, "a", "b", "c", "d")
    add_version(folder.root, "v3", "new", containing(2))
    assert names(list(prune_log(folder, others(folder, "new")))) == [1, 2]
    with WebServer(folder.root).running() as server:
        web = RemoteStore(server.url, cache=tmp_path / "cache")
        new = folder.manifest("new")
        follower = MemoryLog.of(web, new)
        assert uids(follower.read()) == ["c", "d"]
        append(MemoryLog.of(folder, new), *labels(folder, "e"))
        assert uids(follower.read()) == ["e"]
        with pytest.raises(MemoryLogError, match="found that entries 1 to 2 were removed"):
            log_of(web).read()


def test_replica_that_was_away_during_the_removal_is_told_and_cannot_write(folder: Store) -> None:
    write(folder, "a")
    away = log_of(folder)
    assert uids(away.read()) == ["a"]
    write(folder, "b", "c")
    add_version(folder.root, "v3", "new", containing(3))
    assert names(list(prune_log(folder, others(folder, "new")))) == [1, 2]
    for act in (away.read, lambda: append(away, *labels(folder, "x"))):
        with pytest.raises(
            MemoryLogError, match="expected the entries after 1, found that older segments were removed"
        ):
            act()
    with pytest.raises(MemoryLogError, match="expected all entries after 0, found that entries 1 to 2 were removed"):
        log_of(folder).read()
    assert uids(log_of(folder, "new").read()) == []


def test_log_is_copied_and_an_earlier_copy_is_continued(folder: Store, tmp_path: Path) -> None:
    write(folder, "a", "b")
    target = Store(shutil.copytree(folder.root, tmp_path / "target", ignore=shutil.ignore_patterns("memory")))
    assert copy_log(folder, target) == 2
    assert copy_log(folder, target) == copy_log(folder, folder) == 0
    entries = write(folder, "c")
    assert copy_log(folder, target) == 1
    copied = log_of(target).read()
    assert all(map(is_same, entries, copied))
    assert len(copied) == 3
    write(target, "own")
    with pytest.raises(MemoryLogError, match=r"expected the first entries of .*store/memory, found a log of 4 entries"):
        copy_log(folder, target)
    write(folder, "other", "more")
    with pytest.raises(MemoryLogError, match="found a log of 4 entries that has others"):
        copy_log(folder, target)
    assert uids(log_of(target).read()) == ["a", "b", "c", "own"]


def test_log_in_an_object_store_is_copied_and_pruned(
    folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = write(folder, "a", "b", "c")
    with s3_server() as s3:
        url = create_bucket(s3, "copies")
        target = RemoteStore(url, cache=tmp_path / "cache")
        assert copy_log(folder, target) == 3
        manifest = folder.manifest("v3")
        assert all(map(is_same, entries, MemoryLog.of(target, manifest).read()))
        away = MemoryLog.of(target, manifest)
        assert len(away.read()) == 3
        more = MemoryLog.of(target, manifest)
        for name in ("d", "e"):
            append(more, *labels(folder, name))
        monkeypatch.setattr(RemoteStore, "versions", lambda _: ["new"])
        monkeypatch.setattr(RemoteStore, "manifest", lambda *_: manifest.model_copy(update={"memory_sequence": 5}))
        assert names(list(prune_log(target))) == []  # too new: a writer without a lock may be at work
        monkeypatch.setattr(object_segments, "_MIN_AGE_SECONDS", -3_600.0)
        assert names(list(prune_log(target))) == [1, 4]
        assert away.read() == []  # at most a minute later, it is told
        monkeypatch.setattr(object_segments, "_CHECK_SECONDS", 0.0)
        with pytest.raises(MemoryLogError, match="found that older segments were removed"):
            away.read()
        with pytest.raises(MemoryLogError, match="found that older segments were removed"):
            append(away, *labels(folder, "x"))
        assert ObjectSegments(ObjectFolder(url), "memory").first() == 5
