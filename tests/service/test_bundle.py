from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.bundle import describe_files, open_bundle
from service.errors import BundleError
from service.manifest import BUNDLE_FILES, MANIFEST

every_file = pytest.mark.parametrize("name", sorted(BUNDLE_FILES))


def refuses(folder: Path, name: str, expected: str) -> None:
    with pytest.raises(BundleError, match=expected) as error:
        open_bundle(folder)
    assert str(error.value).startswith(f"{folder / name}: ")


@every_file
def test_a_truncated_file_is_named(bundle_folder: Path, name: str) -> None:
    path = bundle_folder / name
    os.truncate(path, path.stat().st_size - 1)
    refuses(bundle_folder, name, "expected .* bytes, found")


@every_file
def test_one_flipped_bit_is_found_and_its_file_named(bundle_folder: Path, name: str) -> None:
    path = bundle_folder / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refuses(bundle_folder, name, "expected SHA-256 .* the file was altered")


@every_file
def test_a_missing_file_is_named(bundle_folder: Path, name: str) -> None:
    (bundle_folder / name).unlink()
    refuses(bundle_folder, name, "expected a file of the bundle, found none")


@every_file
def test_a_link_to_the_very_same_content_is_refused(bundle_folder: Path, tmp_path: Path, name: str) -> None:
    (bundle_folder / name).rename(tmp_path / "elsewhere")
    (bundle_folder / name).symlink_to(tmp_path / "elsewhere")
    refuses(bundle_folder, name, "expected a file of the bundle")


def test_a_folder_in_place_of_a_file_is_refused(bundle_folder: Path) -> None:
    (bundle_folder / "tokenizer.json").unlink()
    (bundle_folder / "tokenizer.json").mkdir()
    refuses(bundle_folder, "tokenizer.json", "expected a file of the bundle")


@pytest.mark.parametrize(
    ("count", "value", "name"),
    [("instances", 4, "value_indptr.npy"), ("labels", 3, "label_counts.npy"), ("pairs", 2, "value_indices.npy")],
)
def test_counts_that_the_files_do_not_bear_out_are_refused(
    bundle_folder: Path, count: str, value: int, name: str
) -> None:
    path = bundle_folder / MANIFEST
    content = json.loads(path.read_text())
    content["counts"][count] = value
    path.write_text(json.dumps(content))
    refuses(bundle_folder, name, "expected .* rows, as the manifest says, found")


@pytest.mark.parametrize("part", ["label", "instance"])
def test_a_table_with_a_row_too_few_is_refused_although_its_checksum_is_right(bundle_folder: Path, part: str) -> None:
    offsets = bundle_folder / f"{part}_texts.offsets.npy"
    np.save(offsets, np.load(offsets)[:-1])
    path = bundle_folder / MANIFEST
    content = json.loads(path.read_text())
    content["files"] = {name: info.model_dump() for name, info in describe_files(bundle_folder).items()}
    path.write_text(json.dumps(content))
    refuses(bundle_folder, f"{part}_texts", "rows, as the manifest says")


def test_a_file_that_no_manifest_names_changes_nothing(bundle_folder: Path) -> None:
    (bundle_folder / "notes.txt").write_text("kept by an operator")
    assert open_bundle(bundle_folder).manifest.version == "v1"


def test_an_opened_bundle_maps_what_was_written(bundle_folder: Path) -> None:
    bundle = open_bundle(bundle_folder)
    assert isinstance(bundle.value_indices, np.memmap)
    assert bundle.value_indptr.tolist() == [0, 1, 3, 3]
    assert bundle.value_indices.tolist() == [0, 0, 1]
    assert list(bundle.labels.uids) == ["label 0", "label 1"]
    assert list(bundle.instance_texts) == [f"text of instance {row}" for row in range(3)]


def test_labels_are_found_by_uid(bundle_folder: Path) -> None:
    labels = open_bundle(bundle_folder).labels
    assert [labels.position(uid) for uid in ("label 1", "label 0", "label", "")] == [1, 0, None, None]


def test_a_bundle_without_a_single_vote_opens(tmp_path: Path, write_bundle: Callable[..., Path]) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "bundle", votes=([], [], [])))
    assert len(bundle.value_indices) == 0


def test_a_bundle_whose_folder_is_gone_is_named(tmp_path: Path) -> None:
    refuses(tmp_path / "gone", MANIFEST, "expected a bundle's manifest")
