"""Signatures: keys are read from files, wrong signatures are refused, and every command verifies signatures."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.files import BUNDLE_FILES, MANIFEST, SIGNATURE
from recollect.core.bundle.signing import read_signing_key, read_verify_keys, sign_manifest
from recollect.core.errors import BundleError, KeyFileError
from recollect.store.store import Store
from tests.keys import NO_PUBLIC_KEY, Pair, secrets, write_every_sort, write_pair
from tests.processes import copy_store, run_json, serving
from tests.service.stores import add_version, answers_with, light_encoder, make_first

# Only label keys vote.
VOTES: dict[str, Any] = {"lambda": 0, "order": "score", "top_k": 1}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def every_sort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every sort")
    write_every_sort(folder)
    return folder


def sign(folder: Path, keys: Pair) -> Path:
    sign_manifest(folder, read_signing_key(keys.private))
    return folder


@pytest.fixture
def signed(bundle_folder: Path, keys: Pair) -> Path:
    return sign(bundle_folder, keys)


def refuses(folder: Path, keys: Pair, name: str, message: str) -> None:
    with pytest.raises(BundleError, match=message) as error:
        open_bundle(folder, read_verify_keys(keys.public))
    assert str(error.value).startswith(f"{folder / name}: ")


def test_unsigned_bundle_opens_only_if_no_public_key_is_given(bundle_folder: Path, keys: Pair) -> None:
    assert open_bundle(bundle_folder).manifest.version == "v1"
    refuses(bundle_folder, keys, SIGNATURE, "expected a signature for .*, found none; build .* --sign")


def test_bundle_signed_with_another_key_is_refused(bundle_folder: Path, keys: Pair, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    sign(bundle_folder, write_pair(tmp_path / "others"))
    refuses(bundle_folder, keys, MANIFEST, "found other content or another signature")


def test_signature_of_another_bundle_is_refused(
    signed: Path, keys: Pair, write_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    other = sign(write_bundle(tmp_path / "other", "v2"), keys)
    (signed / SIGNATURE).write_bytes((other / SIGNATURE).read_bytes())
    refuses(signed, keys, MANIFEST, "found other content or another signature")


@pytest.fixture
def opened(bundle_folder: Path) -> Iterator[list[str]]:
    """Record the names of the bundle's files that Python opens during the test."""
    names: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and str(arguments[0]).startswith(str(bundle_folder)):
            names.append(Path(arguments[0]).name)

    sys.addaudithook(watch)  # an audit hook cannot be removed, so it is disabled after the test
    yield names
    watching = False


def test_no_file_except_manifest_and_signature_is_opened_before_verification(
    signed: Path, keys: Pair, opened: list[str]
) -> None:
    key = read_verify_keys(keys.public)
    open_bundle(signed, key)
    assert set(opened) == {MANIFEST, SIGNATURE, *BUNDLE_FILES}
    assert opened[:2] == [MANIFEST, SIGNATURE]
    opened.clear()
    (signed / MANIFEST).write_bytes(b"{ no JSON at all")
    opened.clear()
    with pytest.raises(BundleError, match="found other content"):
        open_bundle(signed, key)
    assert opened == [MANIFEST, SIGNATURE]


@pytest.mark.parametrize("name", NO_PUBLIC_KEY)
def test_error_for_a_file_without_a_public_key_names_the_kind_of_its_content(every_sort: Path, name: str) -> None:
    with pytest.raises(KeyFileError) as error:
        read_verify_keys(every_sort / name)
    message = str(error.value)
    expected = "expected an Ed25519 public key in PEM, found"
    assert message.startswith(f"{every_sort / name}: {expected}: {NO_PUBLIC_KEY[name]}")
    assert message.endswith("; write it with `openssl pkey -in PRIVATE -pubout -out PUBLIC`")
    assert not any(secret in message for secret in secrets(every_sort / name))


@pytest.fixture(scope="module")
def signed_store(built: Any, keys: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the signed versions v1 and v2 and the unsigned version v3. Version vN answers with N labels."""
    store = copy_store(built.store, tmp_path_factory.mktemp("signed") / "store")
    add_version(store, built.version, "light", light_encoder)
    for top_k in (1, 2, 3):
        add_version(store, "light", f"v{top_k}", answers_with(top_k))
    for version in ("v1", "v2"):
        sign(store / "bundles" / version, keys)
    for version in ("light", built.version):
        shutil.rmtree(store / "bundles" / version)
    make_first(store, "v1")
    return store


@pytest.fixture
def store(signed_store: Path, tmp_path: Path) -> Path:
    return copy_store(signed_store, tmp_path / "store")


def run(*arguments: object) -> int:
    return recollect.main(list(map(str, arguments)))


VERBS = {"predict": ("predict", "bread", "--version", "v3"), "verify": ("verify", "v3"), "activate": ("activate", "v3")}


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_refuses_an_unsigned_version(
    store: Path, keys: Pair, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    command = (*VERBS[verb], "--store", store)
    assert run(*command, "--verify-key", keys.public) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"recollect {verb}: {store}/bundles/v3/{SIGNATURE}: expected a signature for ")
    assert len(printed.err.splitlines()) == 1
    assert Store(store).current() == "v1"
    assert run(*command) == 0


def test_versions_command_marks_unsigned_versions_as_broken(
    store: Path, keys: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("versions", "--store", store, "--verify-key", keys.public) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert "28 instances" in first
    assert "28 instances" in second
    assert "v3  broken: " in third
    assert "expected a signature" in third


@pytest.mark.parametrize("word", ["", "null", "None", "the bundle's own"])
def test_empty_path_of_the_public_key_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    assert run("verify", "v1", "--store", store, "--verify-key", word) == 2
    assert "expected an Ed25519 public key" in capsys.readouterr().err
    monkeypatch.setenv("RECOLLECT_VERIFY_KEY", word)
    assert run("verify", "v1", "--store", store) == 2
    expected = "an Ed25519 public key" if word else "a value, found an empty one"
    assert f"expected {expected}" in capsys.readouterr().err


def test_signed_version_under_another_name_is_refused(store: Path, keys: Pair) -> None:
    (store / "bundles" / "v1").rename(store / "bundles" / "v9")
    with pytest.raises(BundleError, match="expected version v9, manifest says v1"):
        Store(store, keys.public).open("v9")


def test_server_refuses_an_unsigned_version_and_keeps_the_old_one(store: Path, keys: Pair) -> None:
    with serving(store, "--poll-seconds", "0.05", "--verify-key", str(keys.public)) as server:
        Store(store).activate("v3")
        refused = server.wait_for("bundle_refused")
        assert (refused["version"], refused["serving"]) == ("v3", "v1")
        assert f"v3/{SIGNATURE}: expected a signature for {keys.public}, found none" in refused["error"]
        assert len(server.uids("bread")) == 1
        Store(store).activate("v2")
        assert server.wait_for("bundle_swapped")["version"] == "v2"
        assert len(server.uids("bread")) == 2


def test_live_entries_change_no_answer_of_a_program_that_asks_for_signatures(
    light_versions: Path, tmp_path: Path, keys: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    store = copy_store(light_versions, tmp_path / "store")
    sign(store / "bundles" / "v3", keys)
    text = "How whales sleep in the ocean"
    recollect.open(store, live="write").add(labels=[{"uid": "Whales", "text": text}])
    cache = tmp_path / "cache"

    def served(*flags: object) -> list[str]:
        with serving(store, "--bundle-cache", cache, *flags) as server:
            return server.uids(text, **VOTES)

    def predicted(*flags: object) -> list[str]:
        options = ("--lambda", 0, "--order", "score", "--top-k", 1)
        found = run_json("predict", "--store", store, "--bundle-cache", cache, *options, *flags, text)
        return [label["uid"] for label in found["labels"]]

    def opened(**options: Any) -> list[str]:
        model = recollect.open(store, bundle_cache=cache, **options)
        return [label.uid for label in model.predict(text, lambda_=0, order="score", top_k=1)]

    signed = ("--verify-key", keys.public)
    for ask in (served, predicted):
        assert ask() == ["Whales"]
        assert ask("--live", "off") != ["Whales"]
        assert ask(*signed) != ["Whales"]
        assert ask(*signed, "--live", "read") == ["Whales"]
    assert opened(verify_key=keys.public) != ["Whales"]
    assert opened(verify_key=keys.public, live="read") == ["Whales"]
    key_file = tmp_path / "api-keys"
    key_file.write_text("writer writer-0123456789abcdef write\n", encoding="utf-8")
    writable = ("--writable", "--api-keys", key_file)
    with serving(store, "--bundle-cache", cache, *signed, *writable, key="writer-0123456789abcdef") as server:
        assert server.uids(text, **VOTES) == ["Whales"]
    assert run("serve", "--store", store, *writable, "--live", "off") == 2
    assert "--live off: expected --live read with --writable" in capsys.readouterr().err
