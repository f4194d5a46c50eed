"""Versions for swaps under load: copies with equal files, and copies without equal files."""

from __future__ import annotations

from typing import Any

from loadtests.swaps import add_changed_version, copied_versions
from recollect.service.model import open_model
from recollect.service.store.store import Store


def files(store: Store, version: str) -> dict[str, str]:
    return {name: file.sha256 for name, file in store.manifest(version).files.items()}


def test_copied_versions_have_equal_files_and_changed_versions_have_no_equal_files(built: Any) -> None:
    with copied_versions(built.store, 3) as (store, versions):
        changed = [add_changed_version(store, versions[0], number) for number in (1, 2)]
        assert files(store, versions[0]) == files(store, versions[1]) == files(store, versions[2])
        every = [sha256 for version in (versions[0], *changed) for sha256 in set(files(store, version).values())]
        assert len(set(every)) == len(every)


def test_changed_version_opens_and_gives_the_same_answers(built: Any) -> None:
    with copied_versions(built.store, 1) as (store, (first,)):
        changed = add_changed_version(store, first, 2)
        answers = [open_model(store.root, version).predict("tax on bread") for version in (first, changed)]
    assert answers[0] == answers[1]
