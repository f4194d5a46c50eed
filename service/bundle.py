"""The bundle folder: everything a replica serves, checked before it is opened, mapped when it is.

bundle/   manifest.json
          encoder.onnx  tokenizer.json          a query becomes a unit vector
          instance_keys.faiss  label_keys.faiss the keys, searchable; apart, as lambda 0 and 1 need only one
          value_indptr.npy  value_indices.npy   the labels each instance votes for
          label_*  instance_*                   uids and texts, as tables that map
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from service.errors import BundleError
from service.manifest import BUNDLE_FILES, FileInfo, Manifest, read_manifest
from service.strings import StringTable

_HASHING_THREADS = 4


@dataclass(frozen=True)
class LabelTable:
    """Labels by position, and by uid."""

    uids: StringTable
    texts: StringTable
    counts: Int[np.ndarray, " label"]
    order: Int[np.ndarray, " label"]

    def __len__(self) -> int:
        return len(self.uids)

    def position(self, uid: str) -> int | None:
        return self.uids.find(uid, self.order)


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its manifest and its mapped arrays; encoder and indexes open from `folder`."""

    folder: Path
    manifest: Manifest
    value_indptr: Int[np.ndarray, " offset"]
    value_indices: Int[np.ndarray, " pair"]
    labels: LabelTable
    instance_uids: StringTable
    instance_texts: StringTable


def describe_files(folder: Path) -> dict[str, FileInfo]:
    """SHA-256 and size of each of a bundle's files, hashed side by side."""

    def describe(name: str) -> tuple[str, FileInfo]:
        path = folder / name
        with path.open("rb") as file:
            return name, FileInfo(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)

    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        return dict(pool.map(describe, sorted(BUNDLE_FILES)))


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises:
        BundleError: If a file is missing, a link, of another size or of other content; names it.
    """
    for name, expected in manifest.files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise BundleError(f"{path}: expected a file of the bundle, found none; build the bundle again")
        if (size := path.stat().st_size) != expected.size:
            raise BundleError(f"{path}: expected {expected.size:,} bytes, found {size:,}; build the bundle again")
    found = describe_files(folder)
    for name, expected in manifest.files.items():
        if found[name] != expected:
            raise BundleError(
                f"{folder / name}: expected SHA-256 {expected.sha256[:12]}..., found {found[name].sha256[:12]}...; "
                "the file was altered: build the bundle again"
            )


def open_bundle(folder: Path) -> Bundle:
    """Check a bundle's files, then map them.

    Raises:
        BundleError: If the manifest or any file is not what was published.
    """
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    counts = manifest.counts
    labels = LabelTable(
        uids=StringTable.open(folder, "label_uids"),
        texts=StringTable.open(folder, "label_texts"),
        counts=_map(folder / "label_counts.npy", counts.labels),
        order=_map(folder / "label_order.npy", counts.labels),
    )
    bundle = Bundle(
        folder=folder,
        manifest=manifest,
        value_indptr=_map(folder / "value_indptr.npy", counts.instances + 1),
        value_indices=_map(folder / "value_indices.npy", counts.pairs),
        labels=labels,
        instance_uids=StringTable.open(folder, "instance_uids"),
        instance_texts=StringTable.open(folder, "instance_texts"),
    )
    tables = {"label_uids": labels.uids, "label_texts": labels.texts}
    tables |= {"instance_uids": bundle.instance_uids, "instance_texts": bundle.instance_texts}
    for name, table in tables.items():
        _check_count(folder / name, len(table), counts.labels if name.startswith("label") else counts.instances)
    return bundle


def _map(path: Path, expected: int) -> np.ndarray:
    mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    _check_count(path, len(mapped), expected)
    return mapped


def _check_count(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise BundleError(f"{path}: expected {expected:,} rows, as the manifest says, found {found:,}; build again")
