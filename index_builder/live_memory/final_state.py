"""The final state of a live memory: the instances and labels that are left after all entries of a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from recollect.service.memory.entries import (
    Entry,
    LoggedEntry,
    PutCorrection,
    PutInstance,
    PutLabel,
    RemoveCorrection,
    RemoveInstance,
    RemoveLabel,
)
from recollect.trainer.data.split import LabelSets


@dataclass(frozen=True)
class FinalState:
    """The final state, by the rows of the memory before it.

    Attributes:
        rows: Rows of the instances of the memory that are left.
        label_rows: Rows of the labels of the memory that are left.
        instances: The live instances, which follow the rows.
        labels: The live labels that are new, which follow the label rows.
        replaced_labels: The live labels that replace a label of the memory, by its row.
        label_sets: The labels of all instances that are left, by the new positions of the labels.
        kept: Entries that a bundle cannot contain: corrections, and instances with a weight.
    """

    rows: Int[np.ndarray, " row"]
    label_rows: Int[np.ndarray, " label_row"]
    instances: list[PutInstance]
    labels: list[PutLabel]
    replaced_labels: dict[int, PutLabel]
    label_sets: LabelSets
    kept: list[Entry]


class Fold:
    """Applies entries to the instances and labels of a memory.

    A label has an id: its row, or a new number for each insertion. A label that is removed and inserted again has
    another id, so it does not get its old votes.

    Args:
        instance_uids: Uids of the instances of the memory, by row.
        label_uids: Uids of its labels, by row.
        label_sets: The labels of its instances.
    """

    def __init__(self, instance_uids: Sequence[str], label_uids: Sequence[str], label_sets: LabelSets) -> None:
        self._sets, self._mapped_labels = label_sets, len(label_uids)
        self._rows = {uid: row for row, uid in enumerate(instance_uids)}
        self._is_removed = np.zeros(len(instance_uids), dtype=bool)
        self._ids = {uid: row for row, uid in enumerate(label_uids)}
        self._puts: dict[int, PutLabel] = {}
        self._next_id = len(label_uids)
        self._removed_ids: set[int] = set()
        self._instances: dict[str, tuple[PutInstance, dict[str, int]]] = {}
        self._corrections: dict[str, tuple[PutCorrection, int]] = {}

    def apply(self, entries: Iterable[LoggedEntry]) -> FinalState:
        """Apply entries in order, and return the final state."""
        for logged in entries:
            match logged.entry:
                case PutInstance() as put:
                    if ids := {uid: self._ids[uid] for uid in put.labels if uid in self._ids}:
                        self._remove_instance(put.uid)
                        self._instances[put.uid] = put, ids
                case RemoveInstance(uid):
                    self._remove_instance(uid)
                case PutLabel() as put_label:
                    if put_label.uid not in self._ids:
                        self._ids[put_label.uid] = self._next_id
                        self._next_id += 1
                    self._puts[self._ids[put_label.uid]] = put_label
                case RemoveLabel(uid):
                    if (label := self._ids.pop(uid, None)) is not None:
                        self._removed_ids.add(label)
                        self._puts.pop(label, None)
                case PutCorrection() as correction:
                    if correction.label in self._ids:
                        self._corrections[correction.uid] = correction, self._ids[correction.label]
                case RemoveCorrection(uid):
                    self._corrections.pop(uid, None)
        return self._final_state()

    def _remove_instance(self, uid: str) -> None:
        self._instances.pop(uid, None)
        if (row := self._rows.get(uid)) is not None:
            self._is_removed[row] = True

    def _final_state(self) -> FinalState:
        is_present: Bool[np.ndarray, " id"] = np.ones(self._next_id, dtype=bool)
        is_present[list(self._removed_ids)] = False
        positions = np.where(is_present, np.cumsum(is_present) - 1, -1)
        sizes = np.diff(self._sets.indptr)
        row_of_pair = np.repeat(np.arange(len(sizes)), sizes)
        left = np.bincount(row_of_pair, is_present[self._sets.indices], len(sizes)).astype(np.int64)
        is_kept = ~self._is_removed & ((left > 0) | (sizes == 0))  # an instance that never had a label stays
        pairs = is_kept[row_of_pair] & is_present[self._sets.indices]
        merged, kept, found = list[PutInstance](), list[Entry](), list[list[int]]()
        for put, ids in self._instances.values():
            own = {uid: int(positions[label]) for uid, label in ids.items() if is_present[label]}
            if own and put.weight == 1:
                merged.append(put)
                found.append(sorted(own.values()))
            elif own:
                kept.append(dataclasses.replace(put, labels=[*own]))
        kept += [put for put, label in self._corrections.values() if is_present[label]]
        counts = np.concatenate([left[is_kept], [len(own) for own in found]])
        return FinalState(
            rows=np.flatnonzero(is_kept),
            label_rows=np.flatnonzero(is_present[: self._mapped_labels]),
            instances=merged,
            labels=[put for label, put in sorted(self._puts.items()) if label >= self._mapped_labels],
            replaced_labels={label: put for label, put in self._puts.items() if label < self._mapped_labels},
            label_sets=LabelSets(
                np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                np.concatenate([positions[self._sets.indices[pairs]], *map(np.array, found)]).astype(np.int32),
            ),
            kept=kept,
        )
