from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.files import BUNDLE_FILES
from recollect.core.errors import BundleError
from tests.service.stores import edit_bundle, rehash


def refuses(folder: Path, name: str, expected: str) -> None:
    with pytest.raises(BundleError, match=expected) as error:
        open_bundle(folder)
    assert str(error.value).startswith(f"{folder / name}: ")


@pytest.mark.parametrize(
    ("count", "value", "name"),
    [("instances", 4, "value_indptr.npy"), ("labels", 3, "label_counts.npy"), ("pairs", 2, "value_indptr.npy")],
)
def test_bundle_is_refused_if_the_counts_in_its_manifest_differ_from_its_files(
    bundle_folder: Path, count: str, value: int, name: str
) -> None:
    edit_bundle(bundle_folder, lambda _, manifest: manifest["counts"].update({count: value}))
    refuses(bundle_folder, name, "expected ")


def first(value: int) -> Callable[[np.ndarray], Any]:
    return lambda array: array.__setitem__(0, value)


def last(value: int) -> Callable[[np.ndarray], Any]:
    return lambda array: array.__setitem__(-1, value)


def second_end(value: int) -> Callable[[np.ndarray], Any]:
    return lambda array: array.__setitem__(2, value)


TABLES = ("label_uids", "label_texts", "instance_uids", "instance_texts")
FORGED = [
    ("value_indptr.npy", first(1), "expected offsets from 0 to 3, found 1 to 3"),
    ("value_indptr.npy", first(-1), "expected offsets from 0 to 3, found -1 to 3"),
    ("value_indptr.npy", last(4), "expected offsets from 0 to 3, found 0 to 4"),
    (
        "value_indptr.npy",
        second_end(1 << 40),
        "row 2: expected an end at or after its start 1,099,511,627,776, found 3",
    ),
    ("value_indptr.npy", second_end(-1), "row 1: expected an end at or after its start 1, found -1"),
    ("value_indices.npy", last(2), "row 2: expected a position from 0 to 1, found 2"),
    ("value_indices.npy", first(-1), "row 0: expected a position from 0 to 1, found -1"),
    ("voter_indptr.npy", first(1), "expected offsets from 0 to 3, found 1 to 3"),
    ("voter_indptr.npy", second_end(1 << 40), "expected offsets from 0 to 3, found 0 to 1,099"),
    ("voter_indices.npy", last(3), "row 2: expected a position from 0 to 2, found 3"),
    ("voter_indices.npy", first(-1), "row 0: expected a position from 0 to 2, found -1"),
    ("label_order.npy", last(2), "row 1: expected a position from 0 to 1, found 2"),
    ("label_order.npy", first(-2), "row 0: expected a position from 0 to 1, found -2"),
    *[(f"{name}.offsets.npy", first(5), "expected offsets from 0 to .*, found 5") for name in TABLES],
    *[(f"{name}.offsets.npy", last(1 << 40), "expected offsets from 0 to .*, found 0 to 1,099") for name in TABLES],
    *[(f"instance_{field}.offsets.npy", second_end(1), "row 1: expected an end") for field in ("uids", "texts")],
]


def forge(folder: Path, name: str, change: Callable[[np.ndarray], Any]) -> None:
    """Change an array of a bundle in place, or replace it, and correct its checksum in the manifest."""
    array = np.load(folder / name)
    changed = change(array)
    np.save(folder / name, array if changed is None else changed)
    edit_bundle(folder, rehash)


@pytest.mark.parametrize(("name", "change", "message"), FORGED)
def test_forged_array_that_points_outside_of_another_array_is_refused(
    bundle_folder: Path, name: str, change: Callable[[np.ndarray], Any], message: str
) -> None:
    forge(bundle_folder, name, change)
    refuses(bundle_folder, name, message)


@pytest.mark.parametrize("name", [name for name in sorted(BUNDLE_FILES) if name.endswith(".npy")])
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda array: array.astype(np.float32), "found float32"),
        (lambda array: array.astype(array.dtype.newbyteorder() if array.itemsize > 1 else "int8"), "found [>i]"),
        (lambda array: array[None], r"found \w+ of shape \(1, "),
        (lambda array: np.array(7, dtype=array.dtype), r"found \w+ of shape \(\)"),
    ],
    ids=["type", "byte order", "dimensions", "scalar"],
)
def test_forged_array_of_another_type_or_shape_is_refused(
    bundle_folder: Path, name: str, change: Callable[[np.ndarray], Any], found: str
) -> None:
    forge(bundle_folder, name, change)
    refuses(bundle_folder, name, f"expected u?int.* of shape .*, {found}")


@pytest.mark.parametrize("name", [name for name in sorted(BUNDLE_FILES) if name.endswith(".npy")])
def test_forged_array_with_a_missing_row_is_refused(bundle_folder: Path, name: str) -> None:
    forge(bundle_folder, name, lambda array: array[:-1])
    table = name.removesuffix(".utf8.npy")
    refuses(bundle_folder, name if table == name else f"{table}.offsets.npy", "expected ")


def test_forged_text_that_is_not_utf8_does_not_fail_a_request(bundle_folder: Path) -> None:
    forge(bundle_folder, "label_texts.utf8.npy", first(0xFF))
    assert open_bundle(bundle_folder).labels.texts[0] == "\ufffdext of label 0"


@pytest.mark.parametrize(("name", "max_bytes"), [("tokenizer.json", 64 << 20), ("encoder.onnx", 2 << 30)])
def test_file_that_is_too_large_is_refused_before_it_is_read(bundle_folder: Path, name: str, max_bytes: int) -> None:
    edit_bundle(bundle_folder, lambda _, manifest: manifest["files"][name].update(size=max_bytes + 1))
    os.truncate(bundle_folder / name, max_bytes + 1)  # a sparse file, which uses no disk space
    refuses(bundle_folder, name, f"expected at most {max_bytes:,} bytes, manifest says {max_bytes + 1:,}")


def test_unexpected_file_or_folder_in_a_bundle_is_refused(bundle_folder: Path) -> None:
    for name in ("notes.txt", "encoder.onnx.data", ".hidden", "manifest.json~"):
        (bundle_folder / name).write_text("kept by an operator")
        refuses(bundle_folder, name, "expected only the files of a bundle, found this file; move it away")
        (bundle_folder / name).unlink()
    (bundle_folder / "scratch").mkdir()
    refuses(bundle_folder, "scratch", "expected only the files of a bundle")


def test_bundle_is_refused_if_a_label_has_a_wrong_number_of_voters(bundle_folder: Path) -> None:
    forge(bundle_folder, "voter_indptr.npy", lambda offsets: offsets.__setitem__(1, 1))
    refuses(bundle_folder, "voter_indptr.npy", r"row 0: expected 2 voters, the number in label_counts\.npy, found 1;")
