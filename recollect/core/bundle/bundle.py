"""The bundle folder: all data that a replica serves, mapped into memory after its integrity is checked.

bundle/   manifest.json  manifest.sig           description of the bundle, and its signature if it is signed
          encoder.onnx  tokenizer.json          turn a query into a unit vector; with a server of vectors,
                                                encoder_server.json is in place of the tokenizer
          instance_keys.faiss  label_keys.faiss one index for each part of the memory; none if the keys are in Milvus
          golden.json                           queries with the labels that the bundle must answer
          value_indptr.npy  value_indices.npy   the labels that each instance votes for
          voter_indptr.npy  voter_indices.npy   the transpose: the instances that vote for each label
          label_*  instance_*                   uids and texts, as tables of strings
          label_words.*  instance_words.*       the lexical index; a bundle has all of these files or none
          ranker.json  name_*                   the ranker and the words of the labels' names; all of these or none
          cross_*                               a second ranker with a cross-encoder; all of these files or none
          label_fields.*  label_term*           the fields of labels, and the labels of each value; all or none
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from recollect.core.bundle.arrays import map_array, map_offsets, map_positions
from recollect.core.bundle.components import Components
from recollect.core.bundle.field_table import FieldTable
from recollect.core.bundle.files import table_files
from recollect.core.bundle.integrity import read_manifest
from recollect.core.bundle.manifest import Manifest
from recollect.core.bundle.signing import VerifyKeys
from recollect.core.bundle.strings import StringTable
from recollect.core.bundle.values import Matrix
from recollect.core.errors import BundleError


@dataclass(frozen=True, eq=False)
class InstanceTable:
    """The instances of a bundle. An instance is stated by its row.

    Attributes:
        values: The labels that each instance votes for.
        voters: The instances that vote for each label.
    """

    values: Matrix
    voters: Matrix
    uids: StringTable
    texts: StringTable


@dataclass(frozen=True)
class LabelTable:
    """The labels of a bundle; a label is found by its position or by its uid.

    `counts` are the numbers of training instances. `fields` is None if no label has any.
    """

    uids: StringTable
    texts: StringTable
    counts: Int[np.ndarray, " label"]
    order: Int[np.ndarray, " label"]
    fields: FieldTable | None = None

    def __len__(self) -> int:
        return len(self.uids)

    def present(self) -> Bool[np.ndarray, " label"]:
        """Whether each label is present: all labels of a bundle are."""
        return np.ones(len(self), dtype=bool)

    def position(self, uid: str) -> int | None:
        return self.uids.find(uid, self.order)

    def positions(self, uids: Iterable[str]) -> Int[np.ndarray, " found"]:
        """The positions of the known uids, in no particular order; unknown uids are skipped."""
        return self.uids.find_all(uids, self.order)


@dataclass(frozen=True)
class Bundle:
    """An open bundle: its manifest, its instances and its labels.

    The predictor opens the encoder and the indexes from `components`. If the manifest names an engine, the keys are
    there instead.
    """

    folder: Path
    manifest: Manifest
    components: Components
    instances: InstanceTable
    labels: LabelTable

    def require_shape(self, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        """Check that a component has the shape that the manifest states."""
        if found != expected:
            raise BundleError(
                f"{self.folder / name}: the manifest states the shape {expected}, found {found}; "
                "rebuild with `recollect build`"
            )


def open_bundle(
    folder: Path,
    verify_keys: VerifyKeys | None = None,
    pause: Callable[[], None] | None = None,
    share_with: Iterable[Bundle] = (),
) -> Bundle:
    """Check the integrity of a bundle, then map its files.

    Args:
        verify_keys: Keys of which one must have signed the manifest; None accepts a bundle without a signature.
        pause: Called between the steps, so that a caller can slow them down; None runs them at full speed.
        share_with: Other open bundles. Files that equal one of their files are neither hashed nor mapped again.

    Raises:
        BundleError: If the signature, the manifest or any file is not the published one.
    """
    manifest = read_manifest(folder, verify_keys)
    components = Components(folder, manifest, [other.components for other in share_with], pause)
    labels = _open_labels(components, manifest)
    bundle = Bundle(folder, manifest, components, _open_instances(components, manifest), labels)
    _check_voters(bundle)
    return bundle


def _open_labels(components: Components, manifest: Manifest) -> LabelTable:
    labels = manifest.counts.labels
    counts = components.open(map_array, "label_counts.npy", "int32", labels)
    return LabelTable(
        uids=_open_table(components, "label_uids", labels),
        texts=_open_table(components, "label_texts", labels),
        counts=counts,
        order=components.open(map_positions, "label_order.npy", labels, labels),
        fields=FieldTable.open(components, labels) if manifest.has_label_fields else None,
    )


def _open_instances(components: Components, manifest: Manifest) -> InstanceTable:
    instances, labels, pairs = manifest.counts.instances, manifest.counts.labels, manifest.counts.pairs
    return InstanceTable(
        values=Matrix(
            components.open(map_offsets, "value_indptr.npy", instances, pairs),
            components.open(map_positions, "value_indices.npy", pairs, labels),
        ),
        voters=Matrix(
            components.open(map_offsets, "voter_indptr.npy", labels, pairs),
            components.open(map_positions, "voter_indices.npy", pairs, instances),
        ),
        uids=_open_table(components, "instance_uids", instances),
        texts=_open_table(components, "instance_texts", instances),
    )


def _open_table(components: Components, name: str, rows: int) -> StringTable:
    utf8_file, offsets_file = table_files(name)
    utf8 = components.open(map_array, utf8_file, "uint8")
    return StringTable(utf8, components.open(map_offsets, offsets_file, rows, len(utf8)))


def _check_voters(bundle: Bundle) -> None:
    """Check that each label has as many voters, the instances that vote for it, as training instances."""
    offsets, counts = bundle.instances.voters.indptr, bundle.labels.counts
    wrong = np.diff(offsets) != counts
    if wrong.any():
        label = int(wrong.argmax())
        raise BundleError(
            f"{bundle.folder / 'voter_indptr.npy'}: row {label}: expected {counts[label]:,} voters, the number in "
            f"label_counts.npy, found {offsets[label + 1] - offsets[label]:,}; build the bundle again"
        )
