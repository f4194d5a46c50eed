"""The bundle folder: everything a replica serves, checked before it is opened, mapped when it is.

bundle/   manifest.json  manifest.sig           what the bundle is; who says so, where it was signed
          encoder.onnx  tokenizer.json          a query becomes a unit vector
          instance_keys.faiss  label_keys.faiss the keys, searchable; apart, as lambda 0 and 1 need only one
          golden.json                           queries with the labels that it must answer
          value_indptr.npy  value_indices.npy   the labels each instance votes for
          voter_indptr.npy  voter_indices.npy   the same transposed: the instances that vote for each label
          label_*  instance_*                   uids and texts, as tables that map
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from service.bundle.arrays import map_array, map_offsets, map_positions
from service.bundle.manifest import (
    BUNDLE_FILES,
    MANIFEST,
    SIGNATURE,
    FileInfo,
    Manifest,
    read_manifest,
    require_file,
)
from service.bundle.signing import VerifyKey
from service.bundle.strings import StringTable
from service.errors import BundleError
from service.versions.throttle import leisurely, rest

_HASHING_THREADS = 4
# Read and hashed at a time, without Python's lock: each time it is asked for holds up those that answer meanwhile.
_HASHED_BYTES = 4 << 20


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

    def positions(self, uids: Iterable[str]) -> Int[np.ndarray, " found"]:
        """Those of the uids that are known, in no order."""
        return self.uids.find_all(uids, self.order)


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its manifest and its mapped arrays; encoder and indexes open from `folder`."""

    folder: Path
    manifest: Manifest
    value_indptr: Int[np.ndarray, " offset"]
    value_indices: Int[np.ndarray, " pair"]
    voter_indptr: Int[np.ndarray, " voter_offset"]
    voter_indices: Int[np.ndarray, " pair"]
    labels: LabelTable
    instance_uids: StringTable
    instance_texts: StringTable


def describe_files(folder: Path) -> dict[str, FileInfo]:
    """SHA-256 and size of each of a bundle's files, hashed side by side; at leisure, one after the other."""

    def describe(name: str) -> tuple[str, FileInfo]:
        digest, size, piece = hashlib.sha256(), 0, bytearray(_HASHED_BYTES)
        with (folder / name).open("rb", buffering=0) as file:
            while read := file.readinto(piece):
                digest.update(memoryview(piece)[:read])
                size += read
                rest()
        return name, FileInfo(sha256=digest.hexdigest(), size=size)

    if leisurely():
        return dict(map(describe, sorted(BUNDLE_FILES)))
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        return dict(pool.map(describe, sorted(BUNDLE_FILES)))


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare a bundle's folder with its manifest: first the names, then the sizes, then the contents.

    Raises:
        BundleError: If a file is missing, one too many, a link, of another size or of other content; names it.
    """
    for name in sorted(BUNDLE_FILES.union(os.listdir(folder))):
        if name not in BUNDLE_FILES | {MANIFEST, SIGNATURE}:
            raise BundleError(f"{folder / name}: expected a bundle's own files alone, found this; move it elsewhere")
        require_file(folder / name)
    for name, expected in manifest.files.items():
        if (size := (folder / name).stat().st_size) != expected.size:
            raise BundleError(
                f"{folder / name}: expected {expected.size:,} bytes, found {size:,}; build the bundle again"
            )
    found = describe_files(folder)
    for name, expected in manifest.files.items():
        if found[name] != expected:
            raise BundleError(
                f"{folder / name}: expected SHA-256 {expected.sha256[:12]}..., found {found[name].sha256[:12]}...; "
                "the file was altered: build the bundle again"
            )


def open_bundle(folder: Path, verify_key: VerifyKey | None = None) -> Bundle:
    """Check a bundle's files, then map them.

    Args:
        folder: The bundle's.
        verify_key: Whose signature of the manifest is wanted, before any other file is looked at; None: nobody's.

    Raises:
        BundleError: If the signature, the manifest or any file is not what was published.
    """
    manifest = read_manifest(folder, verify_key)
    check_files(folder, manifest)
    instances, labels, pairs = manifest.counts.instances, manifest.counts.labels, manifest.counts.pairs
    counts = map_array(folder / "label_counts.npy", "int32", labels)
    return Bundle(
        folder=folder,
        manifest=manifest,
        value_indptr=map_offsets(folder / "value_indptr.npy", instances, pairs),
        value_indices=map_positions(folder / "value_indices.npy", pairs, labels),
        voter_indptr=_map_voter_offsets(folder, counts, pairs),
        voter_indices=map_positions(folder / "voter_indices.npy", pairs, instances),
        labels=LabelTable(
            uids=StringTable.open(folder, "label_uids", labels),
            texts=StringTable.open(folder, "label_texts", labels),
            counts=counts,
            order=map_positions(folder / "label_order.npy", labels, labels),
        ),
        instance_uids=StringTable.open(folder, "instance_uids", instances),
        instance_texts=StringTable.open(folder, "instance_texts", instances),
    )


def _map_voter_offsets(folder: Path, counts: Int[np.ndarray, " label"], pairs: int) -> Int[np.ndarray, " voter_offset"]:
    """Map where each label's voters start.

    Raises:
        BundleError: If they are no offsets, or give a label more or fewer voters than it has training instances.
    """
    path = folder / "voter_indptr.npy"
    offsets = map_offsets(path, len(counts), pairs)
    wrong = np.diff(offsets) != counts
    if wrong.any():
        label = int(wrong.argmax())
        raise BundleError(
            f"{path}: row {label}: expected {counts[label]:,} voters, as label_counts.npy has it, found "
            f"{offsets[label + 1] - offsets[label]:,}; build the bundle again"
        )
    return offsets
