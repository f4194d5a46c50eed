from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect.core.bundle.files import MANIFEST
from recollect.core.bundle.integrity import read_manifest
from recollect.core.bundle.manifest import Manifest, check_version
from recollect.core.errors import BundleError, StoreError
from tests.service.stores import edit_bundle

REPOSITORY = Path(__file__).parents[3]
MISSING = object()

WRONG: list[tuple[str, Any]] = [
    *[("version", 3), ("created", "yesterday"), ("counts", []), ("counts/instances", 0), ("counts/labels", -1)],
    *[("counts/pairs", "many"), ("dim", 0), ("dim", 1.5), ("encoder/name", None), ("encoder/pooling", "")],
    *[("encoder/query_prompt", None), ("encoder/precision", "fp8"), ("encoder/max_length", 0)],
    *[("encoder/pad_id", -1), ("index/instances/kind", "lsh"), ("index/labels/keys", 0), ("index/labels/effort", -1)],
    *[("defaults/lambda", 1.01), ("defaults/lambda", float("nan")), ("defaults/temperature", 0)],
    *[("defaults/temperature", float("inf")), ("defaults/top_b", 0), ("defaults/top_k", 0)],
    *[("index/labels/refine", 0.5), ("curves/labels", [{}]), ("checks", [{"name": "recall", "found": 1.0}])],
    *[("defaults/order", "size"), ("probabilities", {}), ("metrics", "good")],
    *[("metrics/recall_labels", float("nan")), ("files", {}), ("files/encoder.onnx/sha256", "0" * 63)],
    *[("files/encoder.onnx/sha256", "G" * 64), ("files/encoder.onnx/size", -1), ("files/encoder.onnx", MISSING)],
    *[("files/extra.bin", {"sha256": "0" * 64, "size": 1}), ("surprise", 1)],
    *[
        (field, MISSING)
        for field in ("version", "created", "counts", "dim", "encoder", "index", "defaults", "metrics", "files")
    ],
    *[(f"defaults/{name}", MISSING) for name in ("lambda", "temperature", "top_b", "top_k")],
]


@pytest.fixture
def change(bundle_folder: Path) -> Callable[[str, Any], None]:
    """Creates a manifest with one field changed or removed."""

    def change(field: str, value: Any) -> None:
        def edit(_: Path, part: dict[str, Any]) -> None:
            *parents, name = field.split("/")
            for parent in parents:
                part = part[parent]
            part[name] = value
            if value is MISSING:
                del part[name]

        edit_bundle(bundle_folder, edit)

    return change


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_error_names_the_manifest_field_with_a_wrong_value(
    bundle_folder: Path, change: Callable[[str, Any], None], field: str, value: Any
) -> None:
    change(field, value)
    with pytest.raises(BundleError) as error:
        read_manifest(bundle_folder)
    assert str(bundle_folder / MANIFEST) in str(error.value)
    assert field.split("/")[-1] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("found", [0, 1, 2, 3.5, 4, "3", None, [], MISSING])
def test_error_for_an_unknown_format_version_names_the_known_version(
    bundle_folder: Path, change: Callable[[str, Any], None], found: Any
) -> None:
    change("format_version", found)
    with pytest.raises(BundleError, match=r"manifest\.json: expected format_version 3, found .*build the bundle"):
        read_manifest(bundle_folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"not JSON", b"\xff\xfe", b"[]", b'"manifest"', b"null", b"[" * 100_000],
    ids=["empty", "cut", "text", "bytes", "list", "string", "null", "deep"],
)
def test_content_that_is_not_a_manifest_is_refused(bundle_folder: Path, content: bytes) -> None:
    (bundle_folder / MANIFEST).write_bytes(content)
    with pytest.raises(BundleError, match=r"manifest\.json: expected"):
        read_manifest(bundle_folder)


def test_manifest_of_two_megabytes_is_refused_before_it_is_parsed(bundle_folder: Path) -> None:
    (bundle_folder / MANIFEST).write_bytes(b" " * (2 << 20))
    with pytest.raises(BundleError, match=r"manifest\.json: expected at most 1,048,576 bytes"):
        read_manifest(bundle_folder)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "-x", "_x", "a b", "a\n", "é", "a.b", "x" * 65]
)
def test_name_that_could_be_a_path_out_of_the_store_is_not_a_valid_version(name: str) -> None:
    with pytest.raises(StoreError, match="expected letters, digits"):
        check_version(name)


def test_published_schema_describes_the_manifest() -> None:
    published = json.loads((REPOSITORY / "docs" / "manifest.schema.json").read_text())
    assert published == Manifest.model_json_schema(), "run `make schema`"
