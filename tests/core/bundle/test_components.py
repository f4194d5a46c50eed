"""Components: versions with equal files share them, and every file that is opened was verified."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect.core.bundle.components import Components
from recollect.core.bundle.files import BUNDLE_FILES
from recollect.core.bundle.integrity import read_manifest
from recollect.core.errors import BundleError
from recollect.core.golden import check_golden
from recollect.core.options import resolve_options
from recollect.core.predictor import Predictor
from recollect.service.versions.opening import Opener
from recollect.store.store import Store
from tests.processes import copy_store
from tests.service.stores import Change, add_version, edit_bundle, flip_bit, rehash, with_changed_files

QUERY = "tax on bread"


class Content:
    """The content of a file: the simplest component."""

    def __init__(self, path: Path, *arguments: object) -> None:
        self.content, self.arguments = path.read_bytes(), arguments


def components(folder: Path, *share_with: Components, pause: Callable[[], None] | None = None) -> Components:
    return Components(folder, read_manifest(folder), share_with, pause)


def open_all(opened: Components) -> dict[str, Content]:
    return {name: opened.open(Content, name) for name in sorted(BUNDLE_FILES)}


def change(folder: Path, *names: str) -> None:
    """Change files, and write their checksums into the manifest."""
    for name in names:
        with (folder / name).open("ab") as file:
            file.write(b"x")
    edit_bundle(folder, rehash)


@pytest.fixture
def folders(bundle_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A bundle, and a copy of it that a test may change."""
    return bundle_folder, shutil.copytree(bundle_folder, tmp_path / "copy")


@pytest.mark.parametrize("name", sorted(BUNDLE_FILES))
def test_damaged_file_is_refused_unless_it_is_shared(folders: tuple[Path, Path], name: str) -> None:
    first = components(folders[0])
    open_all(first)
    others = BUNDLE_FILES - {name}
    change(folders[1], name)
    flip_bit(folders[1] / name)
    with pytest.raises(BundleError, match=f"{name}: expected SHA-256 .* the file was altered"):
        components(folders[1], first)
    change(folders[1])
    flip_bit(folders[1] / min(others))  # shared, so the damaged copy is not read
    assert open_all(components(folders[1], first))[min(others)].content == (folders[0] / min(others)).read_bytes()


def test_shared_file_is_verified_before_it_is_opened_with_other_arguments(folders: tuple[Path, Path]) -> None:
    first = components(folders[0])
    old = first.open(Content, "tokenizer.json", 32)
    second = components(folders[1], first)
    assert second.open(Content, "tokenizer.json", 32) is old
    assert second.open(Content, "tokenizer.json", 64) is not old
    flip_bit(folders[1] / "tokenizer.json")
    with pytest.raises(BundleError, match=r"tokenizer.json: expected SHA-256"):
        components(folders[1], first).open(Content, "tokenizer.json", 64)


@pytest.fixture
def store(light_versions: Path, tmp_path: Path) -> Store:
    return Store(copy_store(light_versions, tmp_path / "store"))


@pytest.fixture
def opener(store: Store) -> Opener:
    return Opener(store, threads=1)


def answer(predictor: Predictor) -> list[tuple[str, float]]:
    (found,) = predictor.predict([QUERY], resolve_options(predictor.defaults, top_k=5)).answers
    return [(label.uid, label.score) for label in found.labels]


def opened_parts(predictor: Predictor) -> dict[str, Any]:
    """The components that take long to open."""
    return {
        "session": predictor.encoder._session,
        "tokenizer": predictor.encoder._tokenizer,
        "words": predictor.encoder._words,
        "instances": predictor.memory.searcher.instances.index,
        "labels": predictor.memory.searcher.labels.index,
    }


def shared_parts(one: Predictor, other: Predictor) -> set[str]:
    first, second = opened_parts(one), opened_parts(other)
    return {name for name in first if first[name] is second[name]}


def copied_version(store: Store, change: Change = lambda *_: None) -> str:
    return add_version(store.root, "v3", "copy", change)


def test_version_without_changed_files_shares_its_components_and_answers_equally(store: Store, opener: Opener) -> None:
    first = opener.open("v3")
    second = opener.open(copied_version(store), share_with=[first])
    assert shared_parts(first, second) == {"session", "tokenizer", "words", "instances", "labels"}
    assert (second.version, answer(second)) == ("copy", answer(first))


def test_version_can_be_used_after_the_version_that_opened_its_components_was_closed_and_deleted(
    store: Store, opener: Opener
) -> None:
    first = opener.open("v3")
    second = opener.open(copied_version(store), share_with=[first])
    expected, share = answer(second), check_golden(second)
    first.close()
    shutil.rmtree(store.bundles / "v3")
    assert answer(second) == expected
    assert check_golden(second) == share
    third = opener.open("v5", share_with=[second])
    second.close()
    assert answer(third) == expected


def test_closed_version_leaves_only_shared_files_mapped(store: Store, opener: Opener) -> None:
    def mapped(version: str) -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        folder = str(store.bundles / version)
        return {Path(line.split()[-1]).name for line in lines if folder in line}

    def changed_index(folder: Path, manifest: dict[str, Any]) -> None:
        with_changed_files(folder, manifest)
        shutil.copy(store.bundles / "v3" / "instance_keys.faiss", folder)
        rehash(folder, manifest)

    first = opener.open("v3")
    assert len(mapped("v3")) > 10
    second = opener.open(copied_version(store, changed_index), share_with=[first])
    first.close()
    assert mapped("v3") == {"instance_keys.faiss"}
    assert "instance_keys.faiss" not in mapped("copy")
    second.close()
    assert mapped("v3") | mapped("copy") == set()
