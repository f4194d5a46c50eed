"""`recollect copy`: a version is copied to another store, verified, and published in one step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from recollect.core.bundle.signing import read_signing_key, sign_manifest
from recollect.core.errors import BundleError, StoreError
from recollect.store.store import Store
from tests import forked
from tests.keys import write_pair
from tests.service.stores import flip_bit
from tests.store.servers import publish

# Program that copies version A, and is killed after two files.
KILLED = """
import os, signal, sys
from pathlib import Path
from recollect.store.object_folder import ObjectFolder
from recollect.store.files import FolderFiles
from recollect.store.store import Store
done = 0
def counted(method):
    def call(*args, **kwargs):
        global done
        done += 1
        if done > 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)
    return call
ObjectFolder.upload, FolderFiles.upload = counted(ObjectFolder.upload), counted(FolderFiles.upload)
Store(sys.argv[1]).copy("A", Store(sys.argv[2], None, Path(sys.argv[3])))
"""


@pytest.fixture
def source(tmp_path: Path, write_bundle: Callable[..., Path]) -> Store:
    store = Store(tmp_path / "source")
    for version in "AB":
        write_bundle(store.bundles / version, version)
    store.activate("A")
    return store


@pytest.fixture(params=["folder", "url"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "target") if request.param == "folder" else str(request.getfixturevalue("url"))


def opened(location: str, tmp_path: Path, verify_key: Path | None = None) -> Store:
    return Store(location, verify_key, tmp_path / "cache")


def test_command_copies_the_current_version_to_another_store(
    source: Store, target: str, tmp_path: Path, run: Callable[..., str]
) -> None:
    flags = ("--store", source.root, "--bundle-cache", tmp_path / "cache", "--to", target)
    assert run("copy", "current", *flags) == "A\n"
    copy = opened(target, tmp_path)
    assert copy.versions() == ["A"]
    assert copy.current() is None
    assert copy.open("A").manifest == source.manifest("A")
    assert run("copy", "A", *flags) == "A\n"  # the copy exists, and is equal


def test_copy_never_overwrites_another_bundle_with_the_same_name(
    source: Store, target: str, tmp_path: Path, write_bundle: Callable[..., Path]
) -> None:
    other = write_bundle(tmp_path / "other", "A", created="2027-01-02T03:04:05Z")
    copy = opened(target, tmp_path)
    publish(copy, other, "A")
    with pytest.raises(StoreError, match="bundles/A: expected a new version or an equal copy, found another bundle"):
        source.copy("A", copy)
    assert copy.manifest("A") != source.manifest("A")


def test_damaged_version_is_not_copied(source: Store, target: str, tmp_path: Path) -> None:
    flip_bit(source.bundles / "A" / "label_keys.faiss")
    with pytest.raises(BundleError, match=r"label_keys\.faiss: expected SHA-256"):
        source.copy("A", opened(target, tmp_path))
    assert opened(target, tmp_path).versions() == []


def test_copy_that_was_killed_leaves_no_version_and_can_be_repeated(source: Store, target: str, tmp_path: Path) -> None:
    done = forked.run_code(KILLED, source.root, target, tmp_path / "cache", check=False)
    assert done.returncode == -signal.SIGKILL
    copy = opened(target, tmp_path)
    assert copy.versions() == []
    assert source.copy("A", copy)
    assert copy.open("A").manifest == source.manifest("A")
    assert not list(copy.bundles.glob(".*"))


def test_copy_to_a_full_disk_names_the_target(source: Store, tmp_path: Path) -> None:
    program = "import resource, sys, recollect\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\nrecollect.main()"
    done = forked.run_code(program, "copy", "A", "--store", source.root, "--to", tmp_path / "full")
    assert done.stderr.startswith(f"recollect copy: {tmp_path}/full/bundles/")
    assert done.stderr.endswith(": File too large; free some space and try again\n")


def test_copy_requires_the_signature(source: Store, target: str, tmp_path: Path, error_of: Callable[..., str]) -> None:
    public = write_pair(tmp_path).public
    flags = ("--store", source.root, "--bundle-cache", tmp_path / "cache", "--to", target, "--verify-key", public)
    assert "manifest.sig" in error_of("copy", "A", *flags)
    assert opened(target, tmp_path).versions() == []


def test_signature_is_copied_with_the_bundle(source: Store, target: str, tmp_path: Path) -> None:
    private, public = write_pair(tmp_path)
    sign_manifest(source.bundles / "A", read_signing_key(private))
    Store(source.root, public).copy("A", opened(target, tmp_path, public))
    assert opened(target, tmp_path, public).open("A").manifest.version == "A"
