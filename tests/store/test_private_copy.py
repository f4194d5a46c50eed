"""With public keys, bundles of a store in a folder are opened from a private, checked copy."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import recollect
from recollect.core.bundle.signing import read_signing_key, sign_manifest
from recollect.core.errors import StoreError
from recollect.store.store import Store
from tests import forked
from tests.keys import Pair, write_pair
from tests.processes import copy_store

LABELS = "value_indices.npy"


@pytest.fixture
def keys(tmp_path: Path) -> Pair:
    return write_pair(tmp_path)


@pytest.fixture
def store(origin: Store, keys: Pair, tmp_path: Path) -> Store:
    """The folder of the fixture `origin`, with signed bundles and their public key."""
    for version in origin.versions():
        sign_manifest(origin.bundles / version, read_signing_key(keys.private))
    return Store(origin.root, keys.public, tmp_path / "cache")


def cached(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*/bundles/*"))


def overwrite(folder: Path) -> int:
    """Overwrite the data of all large files of a bundle in place, and return their number."""
    paths = [path for path in folder.iterdir() if path.suffix in (".npy", ".faiss")]
    for path in paths:
        with path.open("r+b") as file:
            file.seek(128)
            file.write(b"\1" * (path.stat().st_size - 128))
    return len(paths)


def test_file_that_is_overwritten_after_its_check_does_not_change_an_open_bundle(store: Store) -> None:
    bundle = store.open("A")
    values, uid = np.array(bundle.instances.values.indices), bundle.labels.uids[1]
    assert overwrite(store.bundles / "A") > 10
    np.testing.assert_array_equal(bundle.instances.values.indices, values)
    assert bundle.labels.uids[1] == uid


@pytest.mark.parametrize("file", [LABELS, "manifest.json"])
def test_link_or_pipe_that_replaces_a_file_during_the_copy_is_refused(store: Store, file: str) -> None:
    path, source = store.bundles / "A" / file, store.files
    content = path.read_bytes()
    path.rename(store.root / "elsewhere")
    path.symlink_to(store.root / "elsewhere")
    with pytest.raises(StoreError, match="found a link"):
        list(source.pieces(f"bundles/A/{file}"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="found a folder, a device or a pipe"):
        list(source.pieces(f"bundles/A/{file}"))
    path.unlink()
    path.write_bytes(content)
    assert b"".join(source.pieces(f"bundles/A/{file}")) == content


def test_open_bundle_is_not_accepted_by_the_signature_of_another_bundle_with_its_name(store: Store) -> None:
    bundle = store.open("A")
    assert store.accepts(bundle)
    replaced = bundle.manifest.model_copy(update={"created": bundle.manifest.created.replace(year=1999)})
    assert not store.accepts(dataclasses.replace(bundle, manifest=replaced))


@pytest.mark.parametrize("max_bytes", [1_000, 20_000])
def test_write_error_during_a_copy_gives_one_message_and_leaves_no_files(
    store: Store, keys: Pair, tmp_path: Path, write_bundle: Callable[..., Path], max_bytes: int
) -> None:
    large = write_bundle(store.bundles / "F", "F", np.eye(3, 4096, dtype="f"), np.eye(2, 4096, dtype="f"))
    sign_manifest(large, read_signing_key(keys.private))
    program = (
        "import resource, sys, recollect\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({max_bytes}, {max_bytes}))\n"
        "sys.exit(recollect.main(sys.argv[1:]))"
    )
    command = ["verify", "F", "--store", store.root, "--verify-key", keys.public, "--bundle-cache", tmp_path / "cache"]
    done = forked.run_code(program, *command, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"recollect verify: {tmp_path}/cache/")
    assert done.stderr.endswith("found: File too large; free some space and try again\n")
    assert cached(tmp_path / "cache") == []


def test_cache_that_other_users_can_write_to_is_refused(store: Store, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for mode in (0o770, 0o707, 0o777, 0o1777):
        cache.chmod(mode)
        expected = f"^{cache}: expected a folder that only user .* can write to, found owner .* and mode {mode:04o}; "
        with pytest.raises(StoreError, match=expected):
            store.open("A")
    assert list(cache.iterdir()) == []
    cache.chmod(0o700)
    assert store.open("A").manifest.version == "A"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("level", [0, 1, 2])
def test_cache_folder_of_another_user_is_refused(store: Store, tmp_path: Path, level: int) -> None:
    bundle = store.open("A").folder
    folder = [tmp_path / "cache", bundle.parents[1], bundle.parents[0]][level]
    os.chown(folder, 65534, 65534)
    with pytest.raises(StoreError, match=f"^{folder}: expected a folder that only user 0 can write to, found owner 65"):
        store.open("A")


def test_copy_that_another_user_could_write_to_is_made_again(store: Store) -> None:
    folder = store.open("A").folder
    before = (folder / LABELS).stat().st_ino
    keep = (folder / LABELS).open("rb")  # so that the number of the file is not used again
    (folder / LABELS).chmod(0o666)
    assert store.open("A").folder == folder
    after = (folder / LABELS).stat()
    assert (after.st_ino != before, after.st_mode & 0o022) == (True, 0)
    keep.close()


def test_new_cache_folders_are_private(store: Store, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = store.open("A").folder
    finally:
        os.umask(before)
    for path in (tmp_path / "cache", folder.parents[1], folder.parents[0]):
        assert path.stat().st_mode & 0o777 == 0o700
    assert not folder.stat().st_mode & 0o022


def test_commands_and_the_python_api_open_the_copy(store: Store, keys: Pair, tmp_path: Path, built: object) -> None:
    root = copy_store(built.store, tmp_path / "real")  # type: ignore[attr-defined]
    (bundle,) = (root / "bundles").iterdir()
    sign_manifest(bundle, read_signing_key(keys.private))
    model = recollect.open(root, verify_key=keys.public, bundle_cache=tmp_path / "cache")
    assert model.predictor.bundle.folder.is_relative_to(tmp_path / "cache")
    flags = ("--store", str(root), "--verify-key", str(keys.public), "--bundle-cache", str(tmp_path / "another"))
    assert recollect.main(["verify", "current", *flags]) == 0
    assert cached(tmp_path / "another") == [bundle.name]
