"""Versions for swaps under load: copies with equal files, and copies without equal files."""

from __future__ import annotations

from typing import Any

from loadtests.swaps import add_changed_version, two_versions
from service.model import open_model
from service.store.store import Store


def files(store: Store, version: str) -> dict[str, str]:
    return {name: file.sha256 for name, file in store.manifest(version).files.items()}


def test_two_versions_have_equal_files_and_a_changed_version_has_none_of_them(built: Any) -> None:
    with two_versions(built.store) as (store, (first, second)):
        changed = add_changed_version(store, first)
        assert files(store, first) == files(store, second)
        assert set(files(store, first).values()).isdisjoint(files(store, changed).values())


def test_changed_version_opens_and_gives_the_same_answers(built: Any) -> None:
    with two_versions(built.store) as (store, (first, _)):
        changed = add_changed_version(store, first)
        answers = [open_model(store.root, version).predict("tax on bread") for version in (first, changed)]
    assert answers[0] == answers[1]
