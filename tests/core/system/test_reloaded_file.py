"""Files of keys are read again when they change: signatures and API keys, without a restart."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import structlog

from recollect.core.bundle.signing import read_signing_key, sign_manifest
from recollect.core.errors import KeyFileError
from recollect.core.system.reloaded_file import ReloadedFile
from recollect.store.store import Store
from tests.keys import Pair, write_pair
from tests.processes import serving

OLD, NEW = "old-0123456789abcdef", "new-0123456789abcdef"


def read_text(path: Path) -> str:
    if not path.exists() or path.read_text() == "broken":
        raise KeyFileError(f"{path}: broken or missing")
    return path.read_text()


@pytest.fixture
def file(tmp_path: Path) -> ReloadedFile[str]:
    (tmp_path / "file").write_text("first")
    return ReloadedFile(tmp_path / "file", read_text)


def check(file: ReloadedFile[str], times: int = 2) -> str:
    for _ in range(times):
        file.reload_if_changed()
    return file.content


def test_changed_file_is_read_again_when_it_is_complete(file: ReloadedFile[str], tmp_path: Path) -> None:
    assert check(file, times=3) == "first"
    (tmp_path / "file").write_text("second")
    assert check(file, times=1) == "first"  # a program may still write the file
    assert check(file, times=1) == "second"


def test_link_to_another_folder_counts_as_a_change(tmp_path: Path) -> None:
    """Kubernetes updates a mounted secret in this way."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "data").symlink_to("a")
    file = ReloadedFile(tmp_path / "data" / "file", read_text)
    (tmp_path / "next").symlink_to("b")
    (tmp_path / "next").rename(tmp_path / "data")
    assert check(file) == "b"


def test_invalid_or_missing_file_is_logged_once_and_the_old_content_stays(
    file: ReloadedFile[str], tmp_path: Path
) -> None:
    for change in (lambda: (tmp_path / "file").write_text("broken"), (tmp_path / "file").unlink):
        with structlog.testing.capture_logs() as logs:
            change()
            assert check(file, times=5) == "first"
        assert [entry["event"] for entry in logs] == ["keys_refused"]
    (tmp_path / "file").write_text("again")
    assert check(file) == "again"


def test_all_workers_use_changed_api_keys_and_refuse_a_broken_file(light_versions: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"shop {OLD}\n")

    def status(key: str) -> set[int]:
        """The status codes of many connections, so that every worker answers some."""
        headers = {"X-API-Key": key}
        return {httpx.get(f"{server.url}/version", headers=headers).status_code for _ in range(20)}

    with serving(light_versions, "--api-keys", str(path), "--workers", "2") as server:
        assert (status(OLD), status(NEW)) == ({200}, {401})
        path.write_text(f"shop {OLD}\nshop-2 {NEW}\n")
        server.wait_for("keys_reloaded", count=2)
        assert (status(OLD), status(NEW)) == ({200}, {200})
        path.write_text(f"shop {OLD}\nshop-2 short\n")
        assert "line 2: expected a key of 16 characters" in server.wait_for("keys_refused", count=2)["error"]
        assert (status(OLD), status(NEW)) == ({200}, {200})
        path.write_text(f"shop-2 {NEW}\n")
        server.wait_for("keys_reloaded", count=4)
        assert (status(OLD), status(NEW)) == ({401}, {200})
        assert not any(secret in server.log() for secret in (OLD, NEW, "short"))


def test_signing_key_is_replaced_without_a_restart(store: Path, tmp_path: Path) -> None:
    def pair(name: str) -> Pair:
        (tmp_path / name).mkdir()
        return write_pair(tmp_path / name)

    def sign(version: str, keys: Pair) -> None:
        sign_manifest(store / "bundles" / version, read_signing_key(keys.private))

    old, new, path = pair("old"), pair("new"), tmp_path / "public.pem"
    path.write_bytes(old.public.read_bytes())
    sign("v3", old)
    sign("v5", new)
    with serving(store, "--verify-key", str(path), "--poll-seconds", "0.05", "--workers", "1") as server:
        path.write_bytes(b"# old\n" + old.public.read_bytes() + b"# new\n" + new.public.read_bytes())
        server.wait_for("keys_reloaded")
        Store(store).activate("v5")
        assert server.wait_for("bundle_swapped")["version"] == "v5"
        path.write_bytes(old.private.read_bytes())
        refused = server.wait_for("keys_refused")
        assert "found: PEM labelled PRIVATE KEY" in refused["error"]
        path.write_bytes(new.public.read_bytes())
        server.wait_for("keys_reloaded", count=2)
        Store(store).activate("v3")
        assert "another signature" in server.wait_for("bundle_refused")["error"]
        assert httpx.get(f"{server.url}/version").json()["version"] == "v5"
