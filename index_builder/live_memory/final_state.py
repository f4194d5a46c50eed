"""The final state of a live memory: the instances and labels that are left after all entries of a log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from recollect.service.memory.entries import Entry, PutCorrection, PutInstance, PutLabel
from recollect.service.memory.snapshot import Snapshot
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
    """

    rows: Int[np.ndarray, " row"]
    label_rows: Int[np.ndarray, " label_row"]
    instances: list[PutInstance]
    labels: list[PutLabel]
    replaced_labels: dict[int, PutLabel]
    label_sets: LabelSets


def final_state(memory: Snapshot) -> FinalState:
    """The final state of a memory."""
    instances, labels = memory.instances, memory.labels
    weights = _live_weights(memory)
    rows = np.flatnonzero(~instances.removed[: instances.mapped])
    live = [number for number, weight in weights.items() if weight == 1]
    present = labels.present()
    positions, is_replaced = np.flatnonzero(present), labels.row_of >= labels.rows.mapped
    is_mapped = positions < len(labels.mapped)
    place, label = memory.values.gather(np.array([*rows, *live], dtype=np.int64))
    sizes = np.bincount(place, minlength=len(rows) + len(live))
    return FinalState(
        rows=rows,
        label_rows=positions[is_mapped],
        instances=[_put_instance(memory, number) for number in live],
        labels=[_put_label(memory, position) for position in positions[~is_mapped].tolist()],
        replaced_labels={
            position: _put_label(memory, position)
            for position in positions[is_mapped & is_replaced[positions]].tolist()
        },
        label_sets=LabelSets(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            (np.cumsum(present) - 1)[label].astype(np.int32),
        ),
    )


def kept_entries(memory: Snapshot) -> list[Entry]:
    """Entries that make the part of a memory that a bundle cannot contain: instances with a weight, and corrections."""
    weighted = (
        _put_instance(memory, number, weight) for number, weight in _live_weights(memory).items() if weight != 1
    )
    return [*weighted, *_corrections(memory)]


def _live_weights(memory: Snapshot) -> dict[int, float]:
    """The numbers of the present live instances, and their weights."""
    rows, values = memory.instances, memory.values
    live = np.flatnonzero(~rows.removed[rows.mapped :]) + rows.mapped
    return {number: values.count(number) for number in live.tolist()}


def _put_instance(memory: Snapshot, number: int, weight: float = 1.0) -> PutInstance:
    instances, uids = memory.instances, memory.labels.uids
    labels = [uids[label] for label in memory.values.gather(np.array([number]))[1].tolist()]
    vector = instances.vectors[number - instances.mapped]
    return PutInstance(instances.uids[number], instances.texts[number], labels, vector, weight)


def _put_label(memory: Snapshot, position: int) -> PutLabel:
    labels = memory.labels
    vector = labels.rows.vectors[labels.row_of.item(position) - labels.rows.mapped]
    return PutLabel(labels.uids[position], labels.texts[position], vector)


def _corrections(memory: Snapshot) -> Iterable[PutCorrection]:
    rows, labels = memory.corrections.rows, memory.labels
    for row in np.flatnonzero(~rows.removed).tolist():
        label = rows.numbers.item(row)
        if not labels.removed[label]:
            yield PutCorrection(rows.uids[row], rows.texts[row], labels.uids[label], rows.vectors[row])
