"""Components: versions with equal files share them, and every file that is opened was verified."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.service.bundle.bundle import open_bundle
from recollect.service.bundle.components import Components
from recollect.service.bundle.files import BUNDLE_FILES, MANIFEST
from recollect.service.bundle.integrity import describe_files, read_manifest
from recollect.service.errors import BundleError
from recollect.service.options import resolve_options
from recollect.service.predictor.golden import check_golden
from recollect.service.predictor.predictor import Predictor
from recollect.service.store.store import Store
from recollect.service.versions.opening import Opener
from tests.service.http_helpers import add_version, copy_store, flip_bit, with_changed_files

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
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {name: info.model_dump() for name, info in describe_files(folder).items()}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture
def folders(bundle_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A bundle, and a copy of it that a test may change."""
    return bundle_folder, shutil.copytree(bundle_folder, tmp_path / "copy")


def test_every_file_that_equals_a_file_of_an_open_bundle_is_shared(folders: tuple[Path, Path]) -> None:
    first = components(folders[0])
    old, new = open_all(first), open_all(components(folders[1], first))
    assert all(new[name] is old[name] for name in BUNDLE_FILES)


@pytest.mark.parametrize("name", sorted(BUNDLE_FILES))
def test_only_a_changed_file_is_opened_again(folders: tuple[Path, Path], name: str) -> None:
    first = components(folders[0])
    old = open_all(first)
    change(folders[1], name)
    new = open_all(components(folders[1], first))
    assert {each for each in BUNDLE_FILES if new[each] is not old[each]} == {name}


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


def test_only_files_that_are_not_shared_are_hashed(folders: tuple[Path, Path]) -> None:
    first = components(folders[0])
    open_all(first)
    change(folders[1], "golden.json", "label_keys.faiss")
    steps: list[str] = []
    components(folders[1], first, pause=lambda: steps.append("step"))
    assert len(steps) == 2


def test_bundle_keeps_only_the_shared_components_that_it_uses(folders: tuple[Path, Path]) -> None:
    first = components(folders[0])
    used, unused = first.open(Content, "tokenizer.json"), weakref.ref(first.open(Content, "encoder.onnx"))
    second = components(folders[1], first)
    assert second.open(Content, "tokenizer.json") is used
    second.release_unused()
    first.close()
    assert unused() is None
    assert second.open(Content, "tokenizer.json", "other arguments").content == used.content


def test_bundles_share_equal_tables_even_if_they_have_other_numbers_of_instances(
    tmp_path: Path, write_bundle: Callable[..., Path]
) -> None:
    first = open_bundle(write_bundle(tmp_path / "first"))
    more = write_bundle(tmp_path / "more", "v2", instance_keys=np.eye(4, dtype=np.float32), votes=([0], [0, 1], [], []))
    second = open_bundle(more, share_with=[first])
    assert second.labels.counts is first.labels.counts
    assert second.instances.values.indptr is not first.instances.values.indptr
    assert [second.instances.texts[3], second.labels.texts[1]] == ["text of instance 3", "text of label 1"]


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
        "instances": predictor.memory.searcher.instances.index,
        "labels": predictor.memory.searcher.labels.index,
    }


def shared_parts(one: Predictor, other: Predictor) -> set[str]:
    first, second = opened_parts(one), opened_parts(other)
    return {name for name in first if first[name] is second[name]}


def copied_version(store: Store, change: Callable[[Path, dict[str, Any]], None] = lambda *_: None) -> str:
    return add_version(store.root, "v3", "copy", change)


def test_version_without_changed_files_shares_its_components_and_answers_equally(store: Store, opener: Opener) -> None:
    first = opener.open("v3")
    second = opener.open(copied_version(store), share_with=[first])
    assert shared_parts(first, second) == {"session", "tokenizer", "instances", "labels"}
    assert (second.version, answer(second)) == ("copy", answer(first))


def test_version_with_changed_files_shares_nothing_and_answers_equally(store: Store, opener: Opener) -> None:
    first = opener.open("v3")
    second = opener.open(copied_version(store, with_changed_files), share_with=[first])
    assert shared_parts(first, second) == set()
    assert answer(second) == answer(first)


def test_manifest_fields_that_determine_a_component_prevent_sharing(store: Store, opener: Opener) -> None:
    def shorter_queries(_: Path, manifest: dict[str, Any]) -> None:
        manifest["encoder"]["max_length"] = 5
        manifest["index"]["instances"]["effort"] = 999

    first = opener.open("v3")
    second = opener.open(copied_version(store, shorter_queries), share_with=[first])
    assert shared_parts(first, second) == {"session", "instances", "labels"}
    assert [each.memory.searcher.instances._info.effort == 999 for each in (first, second)] == [False, True]
    long = [" ".join([QUERY] * 5)]
    assert [each.encoder.tokenise(long).truncated for each in (first, second)] == [[False], [True]]


def test_session_with_another_number_of_threads_is_not_shared(store: Store) -> None:
    first = Opener(store, threads=1).open("v3")
    second = Opener(store, threads=2).open(copied_version(store), share_with=[first])
    assert shared_parts(first, second) == {"tokenizer", "instances", "labels"}


def test_version_can_be_used_after_the_version_that_opened_its_components_was_closed_and_deleted(
    store: Store, opener: Opener
) -> None:
    first = opener.open("v3")
    second = opener.open(copied_version(store), share_with=[first])
    expected, share = answer(second), check_golden(second)
    first.close()
    shutil.rmtree(store.path("v3"))
    assert answer(second) == expected
    assert check_golden(second) == share
    third = opener.open("v5", share_with=[second])
    second.close()
    assert answer(third) == expected


def test_closed_version_leaves_only_shared_files_mapped(store: Store, opener: Opener) -> None:
    def mapped(version: str) -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        folder = str(store.path(version))
        return {Path(line.split()[-1]).name for line in lines if folder in line}

    def changed_index(folder: Path, manifest: dict[str, Any]) -> None:
        with_changed_files(folder, manifest)
        shutil.copy(store.path("v3") / "instance_keys.faiss", folder)
        manifest["files"] = {name: info.model_dump() for name, info in describe_files(folder).items()}

    first = opener.open("v3")
    assert len(mapped("v3")) > 10
    second = opener.open(copied_version(store, changed_index), share_with=[first])
    first.close()
    assert mapped("v3") == {"instance_keys.faiss"}
    assert "instance_keys.faiss" not in mapped("copy")
    second.close()
    assert mapped("v3") | mapped("copy") == set()
