"""`recollect build --sign`: signatures and accepted keys. No output shows a private key."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.core.bundle.files import MANIFEST, SIGNATURE
from recollect.core.errors import BundleError
from recollect.store.store import Store
from tests.keys import NO_PRIVATE_KEY, Pair, secrets, write_every_sort, write_pair

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture
def keys(tmp_path: Path) -> Pair:
    (tmp_path / "keys").mkdir()
    return write_pair(tmp_path / "keys")


@pytest.fixture(scope="module")
def every_sort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every sort")
    write_every_sort(folder)
    return folder


def build(run: Path, store: Path, *flags: object) -> Path:
    """Run `recollect build` and return the folder of the published bundle."""
    assert recollect.main(["build", str(run), "--store", str(store), "--activate", *map(str, flags)]) == 0
    return Store(store).bundles / str(Store(store).current())


def openssl(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)


def test_signed_bundle_opens_only_with_its_public_key(
    tiny_run: Path, quick_export: None, tmp_path: Path, keys: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = build(tiny_run, tmp_path / "store", "--sign", keys.private)
    printed = "".join(capfd.readouterr())
    assert not any(secret in printed for secret in secrets(keys.private))
    assert (bundle / SIGNATURE).stat().st_size == 64
    assert Store(tmp_path / "store", keys.public, tmp_path / "cache").open(bundle.name).manifest.version == bundle.name
    (tmp_path / "others").mkdir()
    others = write_pair(tmp_path / "others")
    with pytest.raises(BundleError, match="found other content or another signature"):
        Store(tmp_path / "store", others.public, tmp_path / "cache").open(bundle.name)


@needs_openssl
def test_openssl_can_create_the_keys_and_verify_the_signature(
    tiny_run: Path, quick_export: None, tmp_path: Path
) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    assert openssl("genpkey", "-algorithm", "ed25519", "-out", private).returncode == 0
    assert openssl("pkey", "-in", private, "-pubout", "-out", public).returncode == 0
    bundle = build(tiny_run, tmp_path / "store", "--sign", private)
    Store(tmp_path / "store", public).open(bundle.name)
    check = ("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", bundle / MANIFEST)
    assert openssl(*check, "-sigfile", bundle / SIGNATURE).returncode == 0
    with (bundle / MANIFEST).open("ab") as manifest:
        manifest.write(b"\n")
    assert openssl(*check, "-sigfile", bundle / SIGNATURE).returncode != 0


@pytest.mark.parametrize("name", NO_PRIVATE_KEY)
def test_build_fails_at_once_if_the_file_has_no_private_key(
    every_sort: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    command = ["build", str(tmp_path / "no run"), "--store", str(tmp_path / "store"), "--sign", str(every_sort / name)]
    assert recollect.main(command) == 2
    printed = capfd.readouterr()
    expected = f"expected an Ed25519 private key in PEM, found: {NO_PRIVATE_KEY[name]}"
    assert printed.err.startswith(f"recollect build: {every_sort / name}: {expected}")
    assert printed.err.endswith(
        "; write it, without a passphrase, with `openssl genpkey -algorithm ed25519 -out PRIVATE`\n"
    )
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert not any(secret in printed.err for secret in secrets(every_sort / name))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("word", ["", "null", "None"])
def test_empty_sign_flag_is_an_error_and_does_not_build_an_unsigned_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert recollect.main(["build", str(tmp_path / "no run"), "--store", str(tmp_path), "--sign", word]) == 2
    assert "expected an Ed25519 private key" in capsys.readouterr().err


def test_evaluate_verifies_the_signature_as_serve_does(
    built: Any, keys: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", str(built.dataset), "--store", str(built.store)]
    assert recollect.main([*command, "--verify-key", str(keys.public)]) == 2
    assert "manifest.sig: expected a signature for " in capsys.readouterr().err
    assert recollect.main([*command, "--verify-key", str(keys.private)]) == 2
    assert "expected an Ed25519 public key in PEM, found: PEM labelled PRIVATE KEY" in capsys.readouterr().err
