"""Removal of commits that no version needs, and copies of a log in other stores."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from recollect.core.errors import MemoryLogError
from recollect.core.tables.entries import LoggedEntry, PutLabel
from recollect.edits.log import MemoryLog, copy_log, extent, prune_log
from recollect.store.store import Store
from tests.edits.logs import append, is_same, uids
from tests.service.stores import Change, add_version
from tests.store.servers import WebServer, create_bucket


@pytest.fixture
def folder(store: Path) -> Store:
    """A store with the versions v3, which is current, and v5."""
    return Store(store)


def log_of(store: Store, version: str = "v3") -> MemoryLog:
    return MemoryLog.of(store, store.manifest(version))


def labels(store: Store, *names: str) -> list[PutLabel]:
    dim = store.manifest("v3").dim
    return [PutLabel(name, f"text of {name}", np.full(dim, dim**-0.5, dtype=np.float32)) for name in names]


def write(store: Store, *names: str, version: str = "v3", seconds: float = 4_000) -> list[LoggedEntry]:
    """Write a label in each commit, at a time that lies back, and return all entries of the log."""
    log = log_of(store, version)
    for name in names:
        append(log, *labels(store, name), seconds=time.time() - seconds)
    return log_of(store, version).read()


def containing(sequence: int) -> Change:
    return lambda _, manifest: manifest.update(memory_sequence=sequence)


def others(store: Store, *kept: str) -> set[str]:
    """The published versions except those that are named."""
    return {*store.versions()} - {*kept}


def test_commits_that_no_version_needs_are_removed(folder: Store, tmp_path: Path) -> None:
    entries = write(folder, "a", "b", "c", "d")
    for version, sequence in (("new", 3), ("newer", 4)):
        add_version(folder.root, "v3", version, containing(sequence))
    assert prune_log(folder) == 0  # v3 and v5 need all entries
    assert prune_log(folder, others(folder, "new", "newer"), dry_run=True) == 3
    assert extent(folder) == (0, 4)
    follower = log_of(folder, "newer")
    assert follower.read() == []
    assert prune_log(folder, others(folder, "new", "newer")) == 3
    assert prune_log(folder, others(folder, "new", "newer")) == 0
    assert extent(folder) == (3, 4)
    assert all(map(is_same, entries[3:], log_of(folder, "new").read()))
    assert follower.read() == []
    append(follower, *labels(folder, "e"))
    assert uids(log_of(folder, "new").read()) == ["d", "e"]
    for version in ("v3", "v5"):
        with pytest.raises(MemoryLogError, match="found that those up to 3 were removed by `recollect prune"):
            log_of(folder, version).read()
    with WebServer(folder.root).running() as server:
        web = Store(server.url, cache=tmp_path / "cache")
        assert uids(MemoryLog.of(web, folder.manifest("new")).read()) == ["d", "e"]


def test_commits_of_the_last_hour_stay(folder: Store) -> None:
    write(folder, "a", "b")
    write(folder, "c", "d", seconds=3_000)
    add_version(folder.root, "v3", "new", containing(4))
    assert prune_log(folder, others(folder, "new")) == 2
    assert uids(log_of(folder, "new").read()) == []
    assert len(list((folder.root / "memory").iterdir())) == 3


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
    write(folder, "other", "more")
    with pytest.raises(MemoryLogError, match=r"0004.jsonl: expected the same commit as in .*store, found another one"):
        copy_log(folder, target)
    assert uids(log_of(target).read()) == ["a", "b", "c", "own"]


def test_log_in_an_object_store_is_copied_and_pruned(folder: Store, s3: str, tmp_path: Path) -> None:
    entries = write(folder, "a", "b", "c")
    add_version(folder.root, "v3", "new", containing(2))
    target, pruned = (Store(create_bucket(s3, name), cache=tmp_path / "cache") for name in ("copies", "pruned"))
    assert copy_log(folder, target) == 3
    assert all(map(is_same, entries, MemoryLog.of(target, folder.manifest("v3")).read()))
    target.publish(folder.bundles / "new", "new", keep=True)
    assert prune_log(target) == 2
    assert extent(target) == (2, 3)
    assert uids(MemoryLog.of(target, folder.manifest("new")).read()) == ["c"]
    assert copy_log(target, pruned) == 1
    assert extent(pruned) == (2, 3)
