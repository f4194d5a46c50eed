"""Canaries on the command line and in the admin interface: results, wrong input, signatures and retention."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import recollect
from recollect.service.bundle.signing_key import read_signing_key
from recollect.service.errors import StoreError
from recollect.service.store.activation_record import Canary
from recollect.service.store.retention import prune
from recollect.service.store.store import Store
from tests.keys import write_pair
from tests.service.http_helpers import PATIENCE_SECONDS, serving


@pytest.fixture
def small_store(tmp_path: Path, write_bundle: Callable[..., Path]) -> Store:
    """A store with versions A, B and C; A is current."""
    store = Store(tmp_path / "small")
    for version in "ABC":
        write_bundle(store.bundles / version, version)
    store.activate("A")
    return store


@pytest.fixture
def run(small_store: Store, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a verb with the store; returns exit status, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = recollect.main([*arguments, "--store", str(small_store.root)])
        return status, *capsys.readouterr()

    return run


def test_canary_is_shown_by_all_commands_until_it_is_promoted(run: Callable[..., tuple[int, str, str]]) -> None:
    assert run("activate", "B", "--canary", "2.5%", "--why", "new labels") == (0, "B\n", "")
    versions = run("versions")[1].splitlines()
    assert versions[0].startswith("* A  ")
    assert versions[1].startswith("~ B  ")
    assert versions[1].endswith("  (canary of 2.5%)")
    listed = json.loads(run("versions", "--json")[1])
    assert listed["canary"] == {"version": "B", "share": 0.025, "shadow": False}
    assert [row["canary"] for row in listed["versions"]] == [False, True, False]
    assert run("activate", "C", "--shadow") == (0, "C\n", "")
    assert run("promote") == (0, "C\n", "")
    assert run("rollback") == (0, "A\n", "")
    changes = [line.split("  ")[2:4] for line in run("log")[1].splitlines()]
    assert changes == [
        ["activate", "A"],
        ["canary", "A, B as canary of 2.5%"],
        ["shadow", "A, C as shadow of 10%"],
        ["promote", "A -> C"],
        ["rollback", "C -> A"],
    ]


def test_shadow_has_its_own_share(run: Callable[..., tuple[int, str, str]], small_store: Store) -> None:
    run("activate", "B", "--canary", "20 %", "--shadow")
    record = small_store.activation()
    assert record is not None
    assert record.canary == Canary(version="B", share=0.2, shadow=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["activate", "B", "--canary", "0%"], "--canary: expected a percentage above 0% and up to 100%, such as 5%"),
        (["activate", "B", "--canary", "150%"], "found '150%'"),
        (["activate", "B", "--canary", "abc"], "found 'abc'"),
        (["activate", "B", "--canary", "5"], "found '5'"),
        (["activate", "B", "--canary", "nan%"], "found 'nan%'"),
        (["activate", "A", "--canary", "5%"], "the canary must differ from the current version, found A for both"),
        (["activate", "D", "--canary", "5%"], "expected a published version, found no 'D'"),
        (["activate", "../B", "--shadow"], "'../B'"),
        (["promote"], "expected a canary, found none; start one with `recollect activate VERSION --canary 5%`"),
    ],
)
def test_wrong_input_has_one_clear_message_and_changes_nothing(
    run: Callable[..., tuple[int, str, str]], small_store: Store, arguments: list[str], message: str
) -> None:
    before = small_store.activation()
    status, output, errors = run(*arguments)
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert message in errors
    assert small_store.activation() == before


def test_prune_keeps_the_canary(small_store: Store) -> None:
    small_store.start_canary(Canary(version="B", share=0.1))
    assert list(prune(small_store, 1, set)) == []
    small_store.rollback()
    assert [pruned.version for pruned in prune(small_store, 1, set)] == ["B"]


def test_signed_canary_does_not_continue_an_unsigned_record(small_store: Store, tmp_path: Path) -> None:
    small_store.start_canary(Canary(version="B", share=0.1))
    small_store.sign_activations(read_signing_key(write_pair(tmp_path).private))
    for change in (lambda: small_store.start_canary(Canary(version="C", share=0.1)), small_store.promote):
        with pytest.raises(StoreError, match="expected a record that the signing key signed"):
            change()
    small_store.activate("A")
    small_store.start_canary(Canary(version="B", share=0.1))
    assert small_store.promote().version == "B"


def test_admin_interface_starts_promotes_and_removes_a_canary(store: Path) -> None:
    wait = {"wait_seconds": PATIENCE_SECONDS}
    with serving(store, "--admin-port", "0", "--poll-seconds", "0.05") as server:
        address = server.wait_for("serving")["admin"]
        with httpx.Client(base_url=address, timeout=PATIENCE_SECONDS) as admin:
            started = admin.post("/admin/activate", json={"version": "v5", "canary": 0.05, **wait}).json()
            assert (started["version"], started["canary"]) == ("v3", {"version": "v5", "share": 0.05, "shadow": False})
            assert started["replicas"][0]["canary"]["state"] == "open"
            status = admin.get("/admin/status").json()
            assert (status["current"], status["canary"]["version"]) == ("v3", "v5")
            assert admin.get("/admin/versions").json()["canary"]["share"] == 0.05
            removed = admin.post("/admin/rollback", json=wait).json()
            assert (removed["version"], removed["canary"]) == ("v3", None)
            refused = admin.post("/admin/promote", json={})
            assert (refused.status_code, refused.json()["code"]) == (409, "no_canary")
            admin.post("/admin/activate", json={"version": "v5", "shadow": True, **wait})
            promoted = admin.post("/admin/promote", json=wait).json()
            assert (promoted["version"], promoted["canary"]) == ("v5", None)
            for wrong in (0, 1.5, "many"):
                assert admin.post("/admin/activate", json={"version": "v3", "canary": wrong}).status_code == 422
            assert admin.post("/admin/activate", json={"version": "../v3", "shadow": True}).status_code == 404
