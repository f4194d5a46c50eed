"""Signed activations: forged, unsigned and replayed activation records are refused, also after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import recollect
from recollect.service.bundle.signing_key import read_signing_key, sign_manifest
from recollect.service.errors import KeyFileError, StoreError
from recollect.service.store.activation_check import SEEN
from recollect.service.store.activation_record import ACTIVATION
from recollect.service.store.audit_log import LOG
from recollect.service.store.store import Store
from tests.keys import Pair, write_pair
from tests.service.http_helpers import Server, copy_store, serving


@pytest.fixture
def keys(tmp_path: Path) -> Pair:
    return write_pair(tmp_path)


@pytest.fixture
def others(tmp_path: Path) -> Pair:
    (tmp_path / "others").mkdir()
    return write_pair(tmp_path / "others")


@pytest.fixture
def writer(origin: Store, keys: Pair) -> Store:
    """The store with the signed bundles A to E, as an operator with the private key uses it."""
    for version in origin.versions():
        sign_manifest(origin.path(version), read_signing_key(keys.private))
    store = Store(origin.root)
    store.sign_activations(read_signing_key(keys.private))
    return store


@pytest.fixture
def replica(writer: Store, keys: Pair, tmp_path: Path) -> Callable[[], Store]:
    """Opens the store as a replica does after a start."""

    def open_replica() -> Store:
        store = Store(writer.root, keys.public, tmp_path / "cache")
        store.require_signed_activations()
        return store

    return open_replica


def edit(store: Store, change: Callable[[dict[str, Any]], object]) -> None:
    path = store.root / ACTIVATION
    record = json.loads(path.read_bytes())
    change(record)
    path.write_text(json.dumps(record))


def test_signed_activation_and_rollback_are_accepted(writer: Store, replica: Callable[[], Store]) -> None:
    store = replica()
    for version in "BC":
        writer.activate(version)
        assert store.current() == version
    assert writer.rollback().version == "B"
    assert (store.current(), replica().current()) == ("B", "B")


def test_unsigned_activation_is_refused_only_if_signatures_are_required(
    origin: Store, writer: Store, replica: Callable[[], Store], keys: Pair, tmp_path: Path
) -> None:
    origin.activate("B")
    with pytest.raises(StoreError, match=f"^{origin.root}/ACTIVATION: expected an activation that is signed for .*, "):
        replica().current()
    with pytest.raises(StoreError, match="found one without a signature; run `recollect activate B --sign PRIVATE`"):
        replica().require_current()
    assert Store(origin.root, keys.public, tmp_path / "cache").current() == "B"
    (origin.root / ACTIVATION).unlink()  # a store of an old release has only the file CURRENT
    with pytest.raises(StoreError, match="found one without a signature"):
        replica().current()


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda record: record.update(version="C"),
    "generation": lambda record: record.update(generation=99),
    "history": lambda record: record.update(previous=["D"]),
    "author": lambda record: record.update(by="operator"),
    "unknown field": lambda record: record.update(canary={"version": "C", "share": 1}),
    "signature": lambda record: record.update(signature="00" * 64),
    "signature that is no number": lambda record: record.update(signature="signed"),
    "empty signature": lambda record: record.update(signature=""),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changed_record_is_refused(writer: Store, replica: Callable[[], Store], change: Callable[..., object]) -> None:
    writer.activate("B")
    edit(writer, change)
    with pytest.raises(StoreError, match="found other content or another signature; run `recollect activate"):
        replica().current()


def test_record_that_another_key_signed_is_refused(
    origin: Store, writer: Store, others: Pair, replica: Callable[[], Store]
) -> None:
    stranger = Store(origin.root)
    stranger.sign_activations(read_signing_key(others.private))
    stranger.activate("B")
    with pytest.raises(StoreError, match="another signature"):
        replica().current()


def test_signature_of_a_manifest_is_no_signature_of_an_activation(writer: Store, keys: Pair) -> None:
    record, key = writer.activate("B"), read_signing_key(keys.private)
    assert record.signed_bytes().startswith(b"recollect activation\n{")
    unprefixed = record.signed_bytes().partition(b"\n")[2]
    assert not key.verify_keys.signed(record.signed_bytes(), key.sign(unprefixed))


def test_replayed_activation_is_refused_also_after_a_restart(
    writer: Store, replica: Callable[[], Store], tmp_path: Path
) -> None:
    writer.activate("B")
    old = (writer.root / ACTIVATION).read_bytes()
    running = replica()
    assert running.current() == "B"
    writer.activate("C")
    assert running.current() == "C"
    (writer.root / ACTIVATION).write_bytes(old)
    message = r"ACTIVATION: expected generation 3 or higher, found 2: an old activation was put back"
    for store in (running, replica()):
        with pytest.raises(StoreError, match=message):
            store.current()
    (seen,) = tmp_path.glob(f"cache/*/{SEEN}")
    assert (seen.read_text().split()[0], seen.parent.stat().st_mode & 0o077) == ("3", 0)
    writer.activate("D")  # the log still contains generation 3
    assert running.current() == "D"


def test_second_record_with_the_highest_generation_is_refused_also_after_a_restart(
    writer: Store, replica: Callable[[], Store]
) -> None:
    before = {name: (writer.root / name).read_bytes() for name in (ACTIVATION, LOG)}
    writer.activate("B")
    assert replica().current() == "B"
    for name, content in before.items():  # another program puts the files back, and the operator activates C
        (writer.root / name).write_bytes(content)
    assert writer.activate("C").generation == 2
    with pytest.raises(StoreError, match="expected the activation that was seen with generation 2, found another one"):
        replica().current()
    writer.activate("C")
    assert replica().current() == "C"


def test_damaged_file_of_the_highest_generation_is_reported(
    writer: Store, replica: Callable[[], Store], tmp_path: Path
) -> None:
    writer.activate("B")
    assert replica().current() == "B"
    (seen,) = tmp_path.glob(f"cache/*/{SEEN}")
    seen.write_text("")
    with pytest.raises(StoreError, match=f"^{seen}: expected the highest generation of .*; remove the file"):
        replica().current()
    seen.unlink()
    assert replica().current() == "B"


def test_signature_never_covers_a_history_that_another_program_wrote(
    origin: Store, writer: Store, replica: Callable[[], Store]
) -> None:
    origin.activate("E")
    edit(writer, lambda record: record.update(previous=["C", "D"]))
    with pytest.raises(StoreError, match="expected a record that the signing key signed, found another one"):
        writer.rollback()
    assert writer.activate("B").previous == ()
    assert replica().current() == "B"


def test_signing_key_without_a_matching_public_key_is_refused(
    writer: Store, keys: Pair, others: Pair, tmp_path: Path
) -> None:
    with pytest.raises(KeyFileError, match=f"^{others.private}: expected the private key of one of the public keys in"):
        Store(writer.root, keys.public, tmp_path / "cache").sign_activations(read_signing_key(others.private))


def test_commands_sign_activations(origin: Store, keys: Pair, run: Callable[..., str], writer: Store) -> None:
    for command in (("activate", "B"), ("activate", "C"), ("rollback",)):
        run(*command, "--store", origin.root, "--sign", keys.private)
        record = origin.activation()
        assert record is not None
        assert len(record.signature or "") == 128
    assert record.version == "B"


def test_verify_activations_needs_public_keys(error_of: Callable[..., str]) -> None:
    assert "--verify-activations: needs --verify-key" in error_of("serve", "--store", "x", "--verify-activations")


@pytest.fixture
def signed(light_versions: Path, tmp_path: Path, keys: Pair) -> Path:
    """A store with the signed small versions v3 and v5; the activation of v3 is signed."""
    root = copy_store(light_versions, tmp_path / "signed")
    for version in ("v3", "v5"):
        sign_manifest(root / "bundles" / version, read_signing_key(keys.private))
    store = Store(root)
    store.sign_activations(read_signing_key(keys.private))
    store.activate("v3")
    return root


def test_server_keeps_its_version_when_an_activation_is_forged_or_replayed(signed: Path, keys: Pair) -> None:
    def version(server: Server) -> str:
        return str(httpx.get(f"{server.url}/version").json()["version"])

    flags = ("--verify-key", str(keys.public), "--verify-activations", "--poll-seconds", "0.05", "--admin-port", "0")
    with serving(signed, *flags) as server:
        old = (signed / ACTIVATION).read_bytes()
        Store(signed).activate("v5")
        assert "without a signature" in server.wait_for("store_unreadable")["error"]
        assert version(server) == "v3"
        assert recollect.main(["activate", "v5", "--store", str(signed), "--sign", str(keys.private)]) == 0
        assert server.wait_for("bundle_swapped")["version"] == "v5"
        (signed / ACTIVATION).write_bytes(old)
        assert "an old activation was put back" in server.wait_for("store_unreadable", count=2)["error"]
        assert version(server) == "v5"
        admin = server.wait_for("serving")["admin"]
        for path, body in (("activate", {"version": "v5"}), ("rollback", {})):
            refused = httpx.post(f"{admin}/admin/{path}", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "signature_required")
            assert f"run `recollect {path}" in refused.json()["detail"]
