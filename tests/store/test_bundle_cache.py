"""The cache of a store at a URL: downloads, checks, removal, and use by several processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.core.bundle.files import MANIFEST
from recollect.core.bundle.signing import read_signing_key, sign_manifest
from recollect.core.errors import BundleError, StoreError
from recollect.store.store import Store
from tests import forked
from tests.keys import write_pair
from tests.service.stores import answers_with, edit_bundle, flip_bit
from tests.store.servers import TIMEOUT_SECONDS, WebServer

REPOSITORY = Path(__file__).parents[2]
# Program of a process: print "started", then open a version of a store at a URL.
OPENER = """
import sys
from pathlib import Path
from recollect.store.store import Store
store = Store(sys.argv[1], None, Path(sys.argv[2]))
print("started", flush=True)
print(store.open(sys.argv[3]).manifest.version)
"""


def cached(store: Store) -> list[str]:
    return sorted(path.name for path in store.bundles.iterdir())


def start_opener(url: str, cache: Path, version: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OPENER, url, str(cache), version]
    return forked.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def test_damaged_bundle_in_the_cache_is_downloaded_again(store: Store) -> None:
    assert store.open("A").manifest.version == "A"
    flip_bit(store.bundles / "A" / "label_keys.faiss")
    assert store.open("A").manifest.version == "A"
    (store.bundles / "A" / "golden.json").unlink()
    assert store.open("A").manifest.version == "A"


def test_bundle_that_is_damaged_in_the_store_is_refused_with_its_url_and_not_cached(
    web: WebServer, origin: Store, store: Store
) -> None:
    flip_bit(origin.bundles / "A" / "label_keys.faiss")
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/A/label_keys.faiss: expected SHA-256"):
        store.open("A")
    assert cached(store) == []
    (origin.bundles / "B" / "golden.json").unlink()
    with pytest.raises(StoreError, match="bundles/B/golden.json: expected a file of the bundle, found none"):
        store.open("B")
    (origin.bundles / "C" / MANIFEST).write_text("{")
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/C/manifest.json: expected JSON"):
        store.open("C")
    (origin.bundles / "D" / MANIFEST).write_bytes((origin.bundles / "E" / MANIFEST).read_bytes())
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/D: expected version D, manifest says E"):
        store.open("D")
    assert cached(store) == []


def test_bundle_larger_than_the_free_disk_space_is_not_downloaded(web: WebServer, origin: Store, store: Store) -> None:
    edit_bundle(origin.bundles / "A", lambda _, manifest: manifest["files"]["label_keys.faiss"].update(size=10**18))
    with pytest.raises(
        StoreError, match=r"expected 1,000,.* bytes of free space in .*, found .*or choose another --bundle-cache"
    ):
        store.open("A")
    assert not [path for path in web.requests if path.endswith(".faiss")]


def test_file_larger_than_stated_in_the_manifest_is_refused(web: WebServer, origin: Store, store: Store) -> None:
    with (origin.bundles / "A" / "label_keys.faiss").open("ab") as file:
        file.write(b"more")
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/A/label_keys.faiss: expected the size in the man"):
        store.open("A")
    assert cached(store) == []


def test_manifest_with_an_unexpected_file_name_is_refused(origin: Store, store: Store, tmp_path: Path) -> None:
    name = "../../../escaped"
    file = {name: {"sha256": "0" * 64, "size": 1}}
    edit_bundle(origin.bundles / "A", lambda _, manifest: manifest["files"].update(file))
    with pytest.raises(BundleError, match=r"missing or unexpected: ../../../escaped"):
        store.open("A")
    with pytest.raises(StoreError, match="expected letters, digits"):
        store.open("../A")
    assert not list(tmp_path.rglob("escaped"))


def test_signature_is_checked_before_other_files_are_downloaded(web: WebServer, origin: Store, tmp_path: Path) -> None:
    keys = write_pair(tmp_path)
    store = Store(web.url, keys.public, tmp_path / "cache")
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/A/manifest.sig: expected a signature for .*public"):
        store.open("A")
    assert not [path for path in web.requests if path.endswith(".faiss")]
    Store(web.url, None, tmp_path / "cache").open("A")
    sign_manifest(origin.bundles / "A", read_signing_key(keys.private))
    assert store.open("A").manifest.version == "A"  # the unsigned copy in the cache is not used
    edit_bundle(origin.bundles / "A", answers_with(3))
    with pytest.raises(BundleError, match=r"manifest\.sig"):
        store.open("A")


def test_killed_download_leaves_no_cached_version_and_the_next_download_removes_its_files(
    web: WebServer, store: Store
) -> None:
    web.paused_file = "instance_keys.faiss"
    with start_opener(web.url, store.root.parent, "A") as opener:
        assert web.paused.wait(TIMEOUT_SECONDS)
        opener.send_signal(signal.SIGKILL)
    assert [name.startswith(".copy-") for name in cached(store)] == [True]
    web.paused_file = ""
    web.resumed.set()
    assert store.open("A").manifest.version == "A"
    assert cached(store) == ["A"]


def test_two_processes_that_open_the_same_version_download_it_once(web: WebServer, store: Store) -> None:
    web.paused_file = "instance_keys.faiss"
    openers = [start_opener(web.url, store.root.parent, "A") for _ in range(2)]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "started\n"
    assert web.paused.wait(TIMEOUT_SECONDS)
    web.resumed.set()
    for opener in openers:
        assert opener.communicate(timeout=TIMEOUT_SECONDS)[0] == "A\n"
    assert len([path for path in web.requests if path.endswith("instance_keys.faiss")]) == 1
    assert cached(store) == ["A"]


def test_current_version_and_those_opened_last_stay_in_the_cache_and_an_open_bundle_stays_usable(store: Store) -> None:
    bundle = store.open("B")
    for version in "ACDE":
        store.open(version)
    assert cached(store) == ["A", "C", "D", "E"]
    assert bundle.labels.uids[1] == "label 1"
