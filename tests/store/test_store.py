"""The store in a folder: publishing, activating and rolling back, also after a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recollect.core.bundle.files import MANIFEST
from recollect.core.errors import BundleError, StoreError
from recollect.store.store import Store


@pytest.fixture
def store(tmp_path: Path, write_bundle: Callable[..., Path]) -> Store:
    """A store with versions A, B and C; no version is current."""
    store = Store(tmp_path / "store")
    for version in "ABC":
        write_bundle(store.bundles / version, version)
    return store


def temporary_files(store: Store) -> list[str]:
    return [str(path) for path in store.root.rglob(".*")]


def test_bundle_is_listed_only_after_it_is_published(tmp_path: Path, write_bundle: Callable[..., Path]) -> None:
    store = Store(tmp_path / "new" / "store")
    with store.incoming() as folder:
        for file in write_bundle(tmp_path / "bundle", "v1").iterdir():
            file.rename(folder / file.name)
        assert folder.parent == store.bundles
        assert store.versions() == []
        store.publish(folder, "v1")
        assert store.versions() == ["v1"]
    assert store.manifest("v1").version == "v1"
    assert temporary_files(store) == []


def test_exception_while_a_bundle_is_written_leaves_no_files(store: Store) -> None:
    with pytest.raises(FileNotFoundError), store.incoming() as folder:
        (folder / "missing" / "keys").write_bytes(b"half")
    assert (store.versions(), temporary_files(store)) == (["A", "B", "C"], [])


def test_bundle_is_never_published_over_another_one_and_replaces_a_half_copied_one(
    store: Store, tmp_path: Path, write_bundle: Callable[..., Path]
) -> None:
    before = store.manifest("A")
    other = write_bundle(tmp_path / "other", "A", created="2027-01-02T03:04:05Z")
    for keep in (True, False):
        with pytest.raises(StoreError, match="bundles/A: expected a new version, found one already published; build"):
            Store(store.root).publish(other, "A", keep)
    assert store.manifest("A") == before
    (store.bundles / "A" / MANIFEST).unlink()
    store.publish(other, "A")
    assert store.manifest("A") != before
    assert store.open("A").labels.uids[1] == "label 1"
    assert temporary_files(store) == []


def test_version_with_a_broken_manifest_is_not_activated(store: Store) -> None:
    store.activate("A")
    (store.bundles / "B" / MANIFEST).write_text("{}")
    with pytest.raises(BundleError, match="expected format_version"):
        store.activate("B")
    (store.bundles / "C" / MANIFEST).write_bytes((store.bundles / "A" / MANIFEST).read_bytes())
    with pytest.raises(BundleError, match="expected version C, manifest says A"):
        store.activate("C")
    assert (store.current(), len(store.log())) == ("A", 1)
