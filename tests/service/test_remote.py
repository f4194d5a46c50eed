"""Stores at URLs: over S3 as moto answers it, which is written to, and over a plain web server, which is only read."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import recollect
from service.bundle.files import MANIFEST, SIGNATURE
from service.errors import BundleError, StoreError
from service.store.remote import RemoteStore, default_cache
from service.store.remote_folder import RemoteFolder, without_credentials
from service.store.store import Store, open_store
from tests.keys import Pair, write_pair
from tests.service.http_helpers import add_version, answers_with, copy_store, flip_bit, light_encoder, serving
from tests.service.remote_helpers import PATIENCE_SECONDS, Web, publish

REPOSITORY = Path(__file__).parents[2]
POLL = ("--poll-seconds", "0.05")
# Opens a version of a store at a URL, and says that it is about to.
OPENER = """
import sys
from pathlib import Path
from service.store.store import open_store
store = open_store(sys.argv[1], None, Path(sys.argv[2]))
print("begun", flush=True)
print(store.open(sys.argv[3]).manifest.version)
"""


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of an S3, and the variables with which its driver finds it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def url(s3: str, tmp_path: Path) -> str:
    """A store's URL in an empty bucket."""
    import s3fs

    bucket = "".join(each for each in tmp_path.name.lower() if each.isalnum())[-40:]
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/models/store"


@pytest.fixture
def origin(tmp_path: Path, write_bundle: Callable[..., Path]) -> Store:
    """The store behind `web`: versions A to E, A is current."""
    store = Store(tmp_path / "origin")
    for version in "ABCDE":
        write_bundle(store.bundles / version, version)
    store.activate("A")
    return store


@pytest.fixture
def web(origin: Store) -> Iterator[Web]:
    with Web(origin.root).up() as web:
        yield web


@pytest.fixture
def store(web: Web, tmp_path: Path) -> Store:
    return open_store(web.url, None, tmp_path / "cache")


@pytest.fixture(scope="module")
def light_bundles(road: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions v3 and v5, which answer with 3 and 5 labels and open quickly."""
    store = copy_store(road.store, tmp_path_factory.mktemp("light") / "store")
    add_version(store, road.version, "light", light_encoder)
    for version, top_k in {"v3": 3, "v5": 5}.items():
        add_version(store, "light", version, answers_with(top_k))
    return store / "bundles"


def cached(store: Store) -> list[str]:
    return sorted(path.name for path in store.bundles.iterdir())


def opener(url: str, cache: Path, version: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OPENER, url, str(cache), version]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a verb prints that succeeds."""
    assert recollect.main([str(each) for each in arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a verb that refuses."""
    assert recollect.main([str(each) for each in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_folder_is_opened_without_fsspec(origin: Store) -> None:
    code = """
import sys
from service.store.store import open_store
print(type(open_store(sys.argv[1])).__name__, "fsspec" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(origin.root)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["Store", "False"]


def test_a_store_in_s3_is_published_to_served_from_swapped_and_rolled_back(
    url: str, light_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    flags = ("--store", url, "--bundle-cache", cache)
    for version in ("v3", "v5"):
        publish(open_store(url, None, cache), light_bundles / version, version)
    with pytest.raises(StoreError, match="expected a new version, found one already published; build again"):
        publish(open_store(url, None, cache), light_bundles / "v3", "v3")
    assert run(capsys, "activate", "v3", *flags) == "v3\n"
    listed = json.loads(run(capsys, "versions", "--json", *flags))
    assert (listed["current"], [row["version"] for row in listed["versions"]]) == ("v3", ["v3", "v5"])
    assert not any(path.is_dir() for path in open_store(url, None, cache).bundles.iterdir())  # manifests were enough
    with serving(url, *POLL, "--bundle-cache", str(cache)) as server, httpx.Client(base_url=server.url) as client:

        def labels() -> int:
            return len(client.post("/predict", json={"query": "bread"}, timeout=PATIENCE_SECONDS).json()["labels"])

        assert labels() == 3
        assert run(capsys, "activate", "v5", *flags) == "v5\n"
        server.wait_for("bundle_swapped")
        assert labels() == 5
        assert run(capsys, "rollback", *flags) == "v3\n"
        server.wait_for("bundle_swapped", 2)
        assert labels() == 3
        assert "very-secret" not in server.log()
    assert json.loads(run(capsys, "predict", "bread", "--version", "v5", "--json", *flags))["version"] == "v5"


def test_what_a_killed_upload_left_is_no_version_and_is_written_over(url: str, origin: Store, tmp_path: Path) -> None:
    store = open_store(url, None, tmp_path / "cache")
    publish(store, origin.path("A"), "A")
    RemoteFolder(url).write("bundles/B/encoder.onnx", b"half")
    assert store.versions() == ["A"]
    with pytest.raises(StoreError, match="expected a published version, found no 'B'; the latest: A"):
        store.activate("B")
    publish(store, origin.path("B"), "B")
    assert store.open("B").manifest.version == "B"


def test_activation_and_rollback_leave_the_files_that_a_folder_would_have(
    url: str, origin: Store, tmp_path: Path
) -> None:
    store, remote = open_store(url, None, tmp_path / "cache"), RemoteFolder(url)
    for version in "ABC":
        publish(store, origin.path(version), version)
        store.activate(version)
    assert (remote.read("HISTORY"), remote.read("CURRENT")) == (b"A\nB\nC\n", b"C\n")
    assert [store.rollback(), store.rollback()] == ["B", "A"]
    with pytest.raises(StoreError, match="no version was current before"):
        store.rollback()
    assert (remote.read("HISTORY"), store.current()) == (b"A\n", "A")
    remote.write("CURRENT", b"../A\n")
    with pytest.raises(StoreError, match="CURRENT: expected a version's name; run `recollect activate`"):
        store.current()
    store.activate("B")
    assert store.current() == "B"


def test_no_bucket_no_store_and_none_current_are_told_apart(
    url: str, origin: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for where in (url, "s3://no-such-bucket/store"):
        line = refusal(capsys, "verify", "current", "--store", where, "--bundle-cache", tmp_path)
        assert line == f"recollect verify: {where}: expected a bundle store, found none; run `recollect build`"
    with pytest.raises(StoreError, match="CURRENT: expected an answer, found: .*bucket does not exist; check the URL"):
        RemoteFolder("s3://no-such-bucket/store").write("CURRENT", b"A\n")
    with (
        pytest.raises(StoreError, match="expected an answer, found: .*bucket does not exist"),
        open_store("s3://no-such-bucket/store", None, tmp_path).incoming(),
    ):
        pytest.fail("a builder would have built for nothing")
    publish(open_store(url, None, tmp_path), origin.path("A"), "A")
    line = refusal(capsys, "verify", "current", "--store", url, "--bundle-cache", tmp_path)
    assert "no version is current; `recollect activate` one of: A" in line


def test_missing_credentials_are_told_in_one_line(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    line = refusal(capsys, "versions", "--store", url, "--bundle-cache", tmp_path)
    assert "expected an answer, found: Unable to locate credentials; check the URL, the network and the cred" in line


def test_a_store_behind_a_plain_web_server_is_read(
    web: Web, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (store.versions(), store.current()) == (["A", "B", "C", "D", "E"], "A")
    assert store.open("B").labels.uids[1] == "label 1"
    assert store.path("B").is_relative_to(tmp_path / "cache")
    assert len(run(capsys, "versions", "--store", web.url, "--bundle-cache", tmp_path / "cache").splitlines()) == 5
    told = refusal(capsys, "activate", "B", "--store", web.url, "--bundle-cache", tmp_path / "cache")
    assert f"{web.url}/HISTORY: expected an answer, found: 501, message=\"Unsupported method ('PUT')" in told


def test_a_cached_version_is_not_fetched_again(web: Web, store: Store) -> None:
    store.open("A")
    web.asked.clear()
    store.open("A")
    assert {path.rpartition("/")[2] for path in web.asked} <= {MANIFEST, SIGNATURE}


def test_a_version_that_was_published_anew_under_its_name_is_fetched_anew(
    origin: Store, store: Store, write_bundle: Callable[..., Path]
) -> None:
    assert store.open("A").manifest.metrics == {"recall_labels": 1.0}
    shutil.rmtree(origin.bundles / "A")
    write_bundle(origin.bundles / "A", "A", metrics={})
    assert store.open("A").manifest.metrics == {}


def test_a_copy_that_was_damaged_in_the_cache_is_fetched_again(store: Store) -> None:
    flip_bit(store.path("A") / "label_keys.faiss")
    assert store.open("A").manifest.version == "A"
    (store.path("A") / "golden.json").unlink()
    assert store.open("A").manifest.version == "A"


def test_a_version_that_is_damaged_in_the_store_is_refused_by_its_url_and_not_kept(
    web: Web, origin: Store, store: Store
) -> None:
    flip_bit(origin.path("A") / "label_keys.faiss")
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/A/label_keys.faiss: expected SHA-256"):
        store.open("A")
    assert cached(store) == []
    (origin.path("B") / "golden.json").unlink()
    with pytest.raises(StoreError, match="bundles/B/golden.json: expected a file of the bundle, found none"):
        store.open("B")
    (origin.path("C") / MANIFEST).write_text("{")
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/C/manifest.json: expected JSON"):
        store.open("C")
    (origin.path("D") / MANIFEST).write_bytes((origin.path("E") / MANIFEST).read_bytes())
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/D: expected version D, manifest says E"):
        store.open("D")
    assert cached(store) == []


def change_manifest(origin: Store, version: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = origin.path(version) / MANIFEST
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def test_a_bundle_that_the_disk_cannot_hold_is_not_fetched(web: Web, origin: Store, store: Store) -> None:
    change_manifest(origin, "A", lambda manifest: manifest["files"]["label_keys.faiss"].update(size=10**18))
    with pytest.raises(StoreError, match=r"expected room for 1,000,.* bytes, found .*or choose another --bundle-cache"):
        store.open("A")
    assert not [path for path in web.asked if path.endswith(".faiss")]


def test_a_file_is_not_read_beyond_the_size_that_the_manifest_names(web: Web, origin: Store, store: Store) -> None:
    with (origin.path("A") / "label_keys.faiss").open("ab") as file:
        file.write(b"more")
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/A/label_keys.faiss: expected .* bytes, found more"):
        store.open("A")
    assert cached(store) == []


def test_files_that_no_bundle_has_are_not_fetched(web: Web, origin: Store, store: Store, tmp_path: Path) -> None:
    name = "../../../escaped"
    change_manifest(origin, "A", lambda manifest: manifest["files"].update({name: {"sha256": "0" * 64, "size": 1}}))
    with pytest.raises(BundleError, match="files: expected exactly the files of a bundle, differs in ../../../escaped"):
        store.open("A")
    with pytest.raises(StoreError, match="expected letters, digits"):
        store.open("../A")
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("name", ["CURRENT", "bundles/A/manifest.json"])
def test_small_files_that_are_not_small_are_refused(origin: Store, store: Store, name: str) -> None:
    (origin.root / name).write_bytes(b"A" * (2 << 20))
    with pytest.raises(StoreError, match=f"/{name}: expected at most 1,048,576 bytes, found more"):
        store.open(store.require_current())


@pytest.fixture
def keys(tmp_path: Path) -> Pair:
    return write_pair(tmp_path)


def test_signatures_are_checked_before_anything_else_is_fetched(
    web: Web, origin: Store, keys: Pair, tmp_path: Path
) -> None:
    from index_builder.signing import read_signing_key, sign_manifest

    store = open_store(web.url, keys.public, tmp_path / "cache")
    with pytest.raises(BundleError, match=f"^{web.url}/bundles/A/manifest.sig: expected a signature for .*public"):
        store.open("A")
    assert not [path for path in web.asked if path.endswith(".faiss")]
    open_store(web.url, None, tmp_path / "cache").open("A")
    sign_manifest(origin.path("A"), read_signing_key(keys.private))
    assert store.open("A").manifest.version == "A"  # although it was cached before it was signed
    change_manifest(origin, "A", lambda manifest: manifest["defaults"].update(top_k=3))
    with pytest.raises(BundleError, match="expected the content that manifest.sig signs for"):
        store.open("A")


def test_a_killed_fetch_is_no_version_and_the_next_one_removes_it(web: Web, store: Store) -> None:
    web.half = "instance_keys.faiss"
    with opener(web.url, store.root.parent, "A") as fetching:
        assert web.begun.wait(PATIENCE_SECONDS)
        fetching.send_signal(signal.SIGKILL)
    assert [name.startswith(".incoming-") for name in cached(store)] == [True]
    web.half = ""
    web.whole.set()
    assert store.open("A").manifest.version == "A"
    assert cached(store) == ["A"]


def test_processes_that_open_one_version_at_once_share_one_fetch(web: Web, store: Store) -> None:
    web.half = "instance_keys.faiss"
    processes = [opener(web.url, store.root.parent, "A") for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
    assert web.begun.wait(PATIENCE_SECONDS)
    web.whole.set()
    for process in processes:
        assert process.communicate(timeout=PATIENCE_SECONDS)[0] == "A\n"
    assert len([path for path in web.asked if path.endswith("instance_keys.faiss")]) == 1
    assert cached(store) == ["A"]


def test_the_current_version_and_the_latest_opened_stay_in_the_cache(store: Store) -> None:
    for version in "ABCDE":
        store.open(version)
        gc.collect()
    assert cached(store) == ["A", "C", "D", "E"]


def test_a_version_that_is_in_use_is_never_removed_from_the_cache(store: Store, origin: Store) -> None:
    bundle = store.open("B")
    for version in "CDE":
        store.open(version)
    assert cached(store) == ["B", "C", "D", "E"]
    del bundle
    gc.collect()
    store.open("A")
    assert cached(store) == ["A", "D", "E"]


def test_a_fetch_is_given_up_when_the_service_stops(web: Web, store: Store) -> None:
    store.close()
    with pytest.raises(StoreError, match=f"^{web.url}: given up, as the service stops"):
        store.open("A")
    assert cached(store) == []


def test_a_server_goes_on_while_its_store_is_broken_or_unreachable_and_takes_what_is_mended(
    light_bundles: Path, tmp_path: Path
) -> None:
    origin = Store(copy_store(light_bundles.parent, tmp_path / "origin"))
    origin.activate("v3")
    add_version(origin.root, "v5", "damaged", lambda folder, _: flip_bit(folder / "label_keys.faiss"))
    web = Web(origin.root)
    with web.up(), serving(web.url, *POLL, "--bundle-cache", str(tmp_path / "cache")) as server:
        origin.activate("damaged")
        refused = server.wait_for("bundle_refused")
        assert (refused["version"], refused["serving"]) == ("damaged", "v3")
        assert refused["error"].startswith(f"{web.url}/bundles/damaged/label_keys.faiss: expected SHA-256")
        assert httpx.post(f"{server.url}/predict", json={"query": "bread"}).json()["version"] == "v3"
        origin.activate("v5")
        server.wait_for("bundle_swapped")
        assert "Traceback" not in server.log()


def test_a_server_outlives_its_store_and_takes_what_was_activated_meanwhile(
    light_bundles: Path, tmp_path: Path
) -> None:
    origin = Store(copy_store(light_bundles.parent, tmp_path / "origin"))
    origin.activate("v3")
    web = Web(origin.root)
    with web.up():
        started = serving(web.url, *POLL, "--bundle-cache", str(tmp_path / "cache"))
        server = started.__enter__()
    try:
        unreadable = server.wait_for("store_unreadable")
        assert unreadable["serving"] == "v3"
        assert f"{web.url}/CURRENT: expected an answer, found: Cannot connect to host" in unreadable["error"]
        assert httpx.post(f"{server.url}/predict", json={"query": "bread"}).json()["version"] == "v3"
        origin.activate("v5")
        with web.up():
            server.wait_for("bundle_swapped")
    finally:
        started.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://user:secret@host:8443/store/", "https://host:8443/store"),
        ("ftp://user:sec/r@et@host/store", "ftp://host/store"),
        ("s3://token@bucket/store?secret=1#x", "s3://bucket/store"),
        ("s3://bucket/a@b/c:d@e", "s3://bucket/a@b/c:d@e"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("http://[::1]:80/store", "http://[::1]:80/store"),
    ],
)
def test_a_name_is_without_credentials(url: str, told: str) -> None:
    assert without_credentials(url) == told


@pytest.mark.parametrize("password", ["hush%40hush", "hush/hush", "hush@hush"])
@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_credentials_are_never_printed(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str, password: str
) -> None:
    port = web.port if scheme == "http" else 9
    url = f"{scheme}://jane:{password}@127.0.0.1:{port}/store"
    line = refusal(capsys, "versions", "--store", url, "--bundle-cache", tmp_path)
    assert f"{scheme}://127.0.0.1:{port}/store/CURRENT: expected an answer, found: " in line
    assert "jane" not in line
    assert "hush" not in line
    assert not [path for path in tmp_path.rglob("*") if "hush" in str(path)]


def test_a_store_with_and_without_credentials_is_cached_once(tmp_path: Path) -> None:
    stores = [open_store(f"ftp://{who}host/store/", None, tmp_path) for who in ("", "jane:a@", "jane:b@")]
    (folder,) = {store.root for store in stores}
    assert folder.name.startswith("ftp-host-store-")
    assert open_store("ftp://host/store2", None, tmp_path).root != folder


def test_an_unknown_protocol_and_a_missing_driver_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refusal(capsys, "versions", "--store", "s4://bucket/store", "--bundle-cache", tmp_path)
    assert "s4://bucket/store: expected a protocol that fsspec knows, as s3, gs, abfs, https or ftp, found 's4'" in line
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    line = refusal(capsys, "versions", "--store", "gs://bucket/store", "--bundle-cache", tmp_path)
    assert "gs://bucket/store: needs gcsfs, which is not installed; pip install gcsfs" in line
    code = "import sys; sys.modules['s3fs'] = None; import recollect; sys.exit(recollect.main())"
    command = [sys.executable, "-c", code, "versions", "--store", "s3://bucket/store"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)})
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "s3://bucket/store: needs s3fs, which is not installed; pip install 'recollect[s3]'" in done.stderr


def test_bundles_are_kept_in_the_users_cache_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "recollect"
    assert RemoteStore("memory://store").root.parent == default_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache() == Path.home() / ".cache" / "recollect"
