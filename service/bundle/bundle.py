"""The bundle folder: all data that a replica serves, mapped into memory after its integrity is checked.

bundle/   manifest.json  manifest.sig           description of the bundle, and its signature if it is signed
          encoder.onnx  tokenizer.json          turn a query into a unit vector
          instance_keys.faiss  label_keys.faiss one index for each part of the memory; lambda 1 and 0 need only one
          golden.json                           queries with the labels that the bundle must answer
          value_indptr.npy  value_indices.npy   the labels that each instance votes for
          voter_indptr.npy  voter_indices.npy   the transpose: the instances that vote for each label
          label_*  instance_*                   uids and texts, as tables of strings
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from service.bundle.arrays import map_array, map_offsets, map_positions
from service.bundle.integrity import check_files, read_manifest
from service.bundle.manifest import Manifest
from service.bundle.signing import VerifyKeys
from service.bundle.strings import StringTable
from service.errors import BundleError


@dataclass(frozen=True)
class LabelTable:
    """The labels of a bundle; a label is found by its position or by its uid."""

    uids: StringTable
    texts: StringTable
    counts: Int[np.ndarray, " label"]
    order: Int[np.ndarray, " label"]

    def __len__(self) -> int:
        return len(self.uids)

    def position(self, uid: str) -> int | None:
        return self.uids.find(uid, self.order)

    def positions(self, uids: Iterable[str]) -> Int[np.ndarray, " found"]:
        """The positions of the known uids, in no particular order; unknown uids are skipped."""
        return self.uids.find_all(uids, self.order)


@dataclass(frozen=True)
class Bundle:
    """An open bundle: its manifest and its mapped arrays.

    The predictor opens the encoder and the indexes from `folder`.
    """

    folder: Path
    manifest: Manifest
    value_indptr: Int[np.ndarray, " offset"]
    value_indices: Int[np.ndarray, " pair"]
    voter_indptr: Int[np.ndarray, " voter_offset"]
    voter_indices: Int[np.ndarray, " pair"]
    labels: LabelTable
    instance_uids: StringTable
    instance_texts: StringTable


def open_bundle(folder: Path, verify_keys: VerifyKeys | None = None, pause: Callable[[], None] | None = None) -> Bundle:
    """Check the integrity of a bundle, then map its files.

    Args:
        folder: Folder of the bundle.
        verify_keys: Keys of which one must have signed the manifest; None accepts a bundle without a signature.
        pause: Called between the steps of the checks, so that a caller can slow them down; None runs them at full
            speed.

    Raises:
        BundleError: If the signature, the manifest or any file is not the published one.
    """
    manifest = read_manifest(folder, verify_keys)
    check_files(folder, manifest, pause)
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
    """Map the offsets of the voters of each label; voters are the instances that vote for the label.

    Raises:
        BundleError: If the offsets are not valid, or a label's number of voters is not its number of training
            instances.
    """
    path = folder / "voter_indptr.npy"
    offsets = map_offsets(path, len(counts), pairs)
    wrong = np.diff(offsets) != counts
    if wrong.any():
        label = int(wrong.argmax())
        raise BundleError(
            f"{path}: row {label}: expected {counts[label]:,} voters, the number in label_counts.npy, found "
            f"{offsets[label + 1] - offsets[label]:,}; build the bundle again"
        )
    return offsets
