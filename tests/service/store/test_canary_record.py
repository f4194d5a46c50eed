"""The canary in the activation record: it is started, promoted and removed by activation commands only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recollect.service.errors import ActivationConflictError, BundleError, CanaryError, StoreError
from recollect.service.store.activation_record import ActivationRecord, Canary
from recollect.service.store.store import Store

CANARY = Canary(version="B", share=0.05)


@pytest.fixture
def store(tmp_path: Path, write_bundle: Callable[..., Path]) -> Store:
    """A store with versions A, B and C; A is current."""
    store = Store(tmp_path / "store")
    for version in "ABC":
        write_bundle(store.bundles / version, version)
    store.activate("A")
    return store


def record_of(store: Store) -> ActivationRecord:
    record = store.activation()
    assert record is not None
    return record


def test_canary_keeps_the_current_version_and_raises_the_generation(store: Store) -> None:
    store.start_canary(CANARY, "ana@host", "new encoder")
    record = record_of(store)
    assert (record.generation, record.version, record.canary, record.action) == (2, "A", CANARY, "canary")
    assert (store.root / "CURRENT").read_text() == "A\n"
    assert record.signed_bytes() != record.model_copy(update={"canary": None}).signed_bytes()


def test_promotion_makes_the_canary_current_and_the_former_version_the_target_of_a_rollback(store: Store) -> None:
    store.start_canary(CANARY)
    promoted = store.promote()
    assert (promoted.version, promoted.canary, promoted.action, promoted.replaced) == ("B", None, "promote", "A")
    assert (store.root / "CURRENT").read_text() == "B\n"
    assert store.rollback().version == "A"


def test_rollback_removes_the_canary_before_it_changes_the_version(store: Store) -> None:
    store.activate("C")
    store.start_canary(CANARY)
    removed = store.rollback()
    assert (removed.version, removed.canary, removed.generation) == ("C", None, 4)
    assert store.rollback().version == "A"


def test_activation_and_another_canary_replace_the_canary(store: Store) -> None:
    store.start_canary(CANARY)
    shadow = Canary(version="C", share=0.5, shadow=True)
    record = store.start_canary(shadow)
    assert (record.canary, record.action) == (shadow, "shadow")
    assert store.activate("A").canary is None
    assert record_of(store).canary is None


def test_log_names_the_canary_of_each_action(store: Store) -> None:
    store.start_canary(CANARY)
    store.promote(why="good")
    found = [(entry.action, entry.from_, entry.to, entry.canary) for entry in store.log()]
    assert found == [("activate", None, "A", None), ("canary", "A", "A", CANARY), ("promote", "A", "B", None)]
    lines = [json.loads(line) for line in (store.root / "LOG").read_text().splitlines()]
    assert [line.get("canary") for line in lines] == [None, CANARY.model_dump(), None]


def test_wrong_canaries_are_refused_and_change_nothing(store: Store) -> None:
    before = record_of(store)
    with pytest.raises(CanaryError, match="canary must differ from the current version, found A for both"):
        store.start_canary(Canary(version="A", share=0.1))
    with pytest.raises(StoreError, match="expected a published version, found no 'D'"):
        store.start_canary(Canary(version="D", share=0.1))
    with pytest.raises(CanaryError, match="expected a canary, found none; start one with"):
        store.promote()
    (store.path("B") / "manifest.json").write_text("{}")
    with pytest.raises(BundleError):
        store.start_canary(CANARY)
    assert record_of(store) == before


def test_canary_needs_a_current_version(tmp_path: Path, write_bundle: Callable[..., Path]) -> None:
    store = Store(tmp_path / "new")
    write_bundle(store.bundles / "B", "B")
    with pytest.raises(CanaryError, match="no version is current; run `recollect activate B`"):
        store.start_canary(CANARY)
    assert store.activation() is None


def test_promotion_of_a_record_that_changed_meanwhile_is_refused(store: Store) -> None:
    checked = store.start_canary(CANARY)
    store.start_canary(Canary(version="C", share=0.1))
    with pytest.raises(ActivationConflictError, match="expected generation 2, found 3"):
        store.promote(expected_generation=checked.generation)


@pytest.mark.parametrize("share", ["0", "1.5", '"x"', "null", "NaN"])
def test_record_with_a_wrong_share_is_damaged(store: Store, share: str) -> None:
    text = f'{{"generation": 5, "version": "A", "canary": {{"version": "B", "share": {share}}}}}'
    (store.root / "ACTIVATION").write_text(text)
    with pytest.raises(StoreError, match="expected an activation record, found a wrong one"):
        store.activation()
