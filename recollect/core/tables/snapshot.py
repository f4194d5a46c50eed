"""Snapshots: the memory of a version after some entries of its log. A snapshot never changes.

A snapshot has the tables of the bundle, masks of the rows that were removed, and live rows. A batch of entries makes
the next snapshot: it copies the masks and the counts that it changes, and shares all other arrays with the snapshot
before. So a batch takes time in proportion to its own size and to the size of the copied arrays: 1 byte for each
instance if one is removed, 4 bytes for each label.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.strings import UidIndex
from recollect.core.bundle.values import Matrix, Values
from recollect.core.tables.corrections import Corrections
from recollect.core.tables.entries import (
    Entry,
    InstanceFields,
    LoggedEntry,
    PutCorrection,
    PutInstance,
    PutLabel,
    Remove,
)
from recollect.core.tables.rows import Column, Rows, RowTable
from recollect.core.tables.tables import Labels, LiveFields, Voters
from recollect.core.words.index import LexicalIndex
from recollect.core.words.names import Names, NameWords

# Each live key is compared with every query: from so many on, they clearly cost CPU time.
# `docs/appendix-benchmarks.md` has the figures.
COMPACT_FROM = 20_000


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The memory of a version after some entries.

    Attributes:
        sequence: Sequence number of the last entry.
        skipped: Number of entries that named a label that the version does not have.
        oldest_seconds: Time of the oldest entry, in seconds since 1970; None without entries.
        instances: The instances, whose numbers are their rows.
        fields: The fields of live instances that differ from their defaults, by row.
        field_bytes: Size of the fields of live instances and labels in memory.
        values: The labels that each instance votes for.
        voters: The instances that vote for each label.
        labels: The labels.
        corrections: The corrections of labels.
        words: The word indexes; None if the bundle has none.
        names: The names of the labels; None if the bundle has no ranker.
    """

    sequence: int
    skipped: int
    oldest_seconds: float | None
    instances: Rows
    fields: Mapping[int, Mapping[str, Any]]
    field_bytes: int
    values: Values
    voters: Voters
    labels: Labels
    corrections: Corrections
    words: LexicalIndex | None
    names: Names | None

    @property
    def live_keys(self) -> int:
        """Number of live keys of instances, labels and corrections, with those that were replaced or removed."""
        return sum(len(each.vectors) for each in (self.instances, self.labels.rows, self.corrections.rows))

    @property
    def live_bytes(self) -> int:
        """Memory of the live entries, with those that were replaced or removed."""
        size = self.values.live.size_bytes + self.field_bytes
        size += sum(each.live_bytes for each in (self.instances, self.labels.rows, self.corrections.rows))
        if self.words is not None:
            size += self.words.instances.live_bytes + self.words.labels.live_bytes
        return size if self.names is None else size + self.names.live.size_bytes

    @property
    def compaction_pays(self) -> bool:
        """Whether a compaction makes queries clearly cheaper.

        A search asks the index of the bundle for more keys, in proportion to those that were removed.
        """
        rows = self.instances
        return self.live_keys >= COMPACT_FROM or 2 * rows.removed_bundle_rows > rows.bundle_rows

    def instance(self, uid: str) -> int | None:
        """The number of the present instance with a uid. The first call builds a table of the bundle's uids."""
        return self.instances.find(uid)

    def fields_of(self, instance: int) -> InstanceFields:
        return InstanceFields(**self.fields.get(instance, {}))

    def labels_of(self, instance: int) -> list[str]:
        """The uids of the labels of an instance."""
        return [self.labels.uids[label] for label in self.values.gather(np.array([instance]))[1].tolist()]


class _Rows:
    """A `Matrix` to which one thread appends rows."""

    def __init__(self, dtype: type) -> None:
        self._offsets, self._items = Column(np.zeros(1, dtype=np.int64)), Column(np.empty(0, dtype=dtype))

    def append(self, row: np.ndarray) -> None:
        self._items.extend(row)
        self._offsets.append(len(self._items))

    @property
    def now(self) -> Matrix:
        """The rows as they are now; rows are never changed."""
        return Matrix(self._offsets.now, self._items.now)


class SnapshotBuilder:
    """Applies entries to the memory of a bundle, in one thread at a time.

    Args:
        bundle: The bundle.
        lexical: Its word indexes; None if it has none.
        names: The names of its labels; None if it has no ranker.
    """

    def __init__(self, bundle: Bundle, lexical: LexicalIndex | None = None, names: Names | None = None) -> None:
        base, labels, dim = bundle.instances, bundle.labels, bundle.manifest.dim
        self._bundle, self._words, self._names = bundle, lexical, names
        self._instances = RowTable(dim, base.uids, base.texts, UidIndex(base.uids).find)
        self._labels = RowTable(dim, labels.uids, labels.texts, labels.position)
        self._corrections = RowTable(dim)
        self._fields, self._field_bytes = dict[int, dict[str, Any]](), 0
        self._votes, self._log_counts, self._weighted = _Rows(np.int32), Column(np.empty(0)), False
        self._counts = Column(labels.counts)
        self._row_of = Column(np.arange(len(labels), dtype=np.int32))
        self._removed = Column(np.zeros(len(labels), dtype=bool))
        self._live_names = (_Rows(np.uint64), _Rows(np.uint64), _Rows(np.int32))
        self._label_fields = LiveFields()
        self._gone: tuple[list[int], list[int]] = ([], [])  # rows of instances and labels, for the word indexes
        self._sequence, self._skipped, self._oldest = bundle.manifest.memory_sequence, 0, math.inf

    def apply(self, entries: Sequence[LoggedEntry]) -> Snapshot:
        """Apply entries in order, and return the next snapshot. Entries that were applied earlier change nothing."""
        instances, labels = len(self._instances), len(self._labels)
        for logged in entries:
            if logged.sequence <= self._sequence:
                continue
            self._sequence = logged.sequence
            self._apply(logged.entry)
            self._oldest = min(self._oldest, logged.seconds)
        self._index_words(instances, labels)
        return self._snapshot()

    def _apply(self, entry: Entry) -> None:
        match entry:
            case PutInstance() as put:
                self._put_instance(put)
            case PutLabel() as put_label:
                self._put_label(put_label)
            case Remove("instance", uid):
                if (row := self._instances.find(uid)) is not None:
                    self._remove_instance(row)
            case Remove("label", uid):
                if (row := self._labels.find(uid)) is not None:
                    self._remove_label(row)
            case PutCorrection() as correction:
                self._put_correction(correction)
            case Remove("correction", uid):
                if (row := self._corrections.find(uid)) is not None:
                    self._corrections.remove(row)

    def _put_instance(self, put: PutInstance) -> None:
        found = [self._position(uid) for uid in put.labels]
        positions = np.unique([position for position in found if position is not None]).astype(np.int32)
        self._skipped += None in found
        if (old := self._instances.find(put.uid)) is not None:
            self._remove_instance(old)
        if not len(positions):
            return
        row = self._instances.add(put.uid, put.text, put.vector, len(self._instances))
        if fields := put.fields.changed():
            self._fields[row] = fields
            self._field_bytes += sys.getsizeof(fields) + sum(map(sys.getsizeof, fields.values()))
        self._votes.append(positions)
        self._log_counts.append(math.log(put.fields.weight))
        self._weighted |= put.fields.weight != 1
        self._counts.change()[positions] += 1

    def _remove_instance(self, row: int) -> None:
        self._instances.remove(row)
        self._gone[0].append(row)
        labels = self._labels_of(row)
        self._counts.change()[labels[~self._removed.now[labels]]] -= 1

    def _labels_of(self, row: int) -> Int[np.ndarray, " label"]:
        """The labels of an instance, with those that were removed."""
        live = row - self._instances.bundle_rows
        if live < 0:
            return self._bundle.instances.values.gather(np.array([row]))[1]
        votes = self._votes.now
        labels: np.ndarray = votes.indices[votes.indptr[live] : votes.indptr[live + 1]]
        return labels

    def _put_label(self, put: PutLabel) -> None:
        if (row := self._labels.find(put.uid)) is None:
            position = len(self._removed)
            self._removed.append(False)
            self._counts.append(0)
            self._row_of.append(len(self._labels))
        else:
            position = self._position_of(row)
            self._remove_label_row(row)
            self._row_of.change()[position] = len(self._labels)
        row = self._labels.add(put.uid, put.text, put.vector, position)
        if put.fields:
            self._field_bytes += self._label_fields.add(row, put.fields)
        if self._names is not None:
            for rows, own in zip(self._live_names, self._names.rows_of(put.text), strict=True):
                rows.append(own)

    def _remove_label(self, row: int) -> None:
        """Remove a label, and the instances without another label."""
        position = self._position_of(row)
        self._remove_label_row(row)
        self._removed.change()[position] = True
        bundle, votes = self._bundle.instances, self._votes.now
        own = np.array([position])
        voters = bundle.voters.gather(own[own < self._labels.bundle_rows])[1]
        live = votes.indptr.searchsorted(np.flatnonzero(votes.indices == position), side="right") - 1
        voters = np.concatenate([voters, live + self._instances.bundle_rows])
        place, label = bundle.values.gather(voters, votes)
        present = np.bincount(place, ~self._removed.now[label], minlength=len(voters))
        for instance in voters[present == 0].tolist():
            if not self._instances.removed.now[instance]:
                self._remove_instance(instance)
        self._counts.change()[position] = 0

    def _remove_label_row(self, row: int) -> None:
        """Remove the key and the text of a label."""
        self._labels.remove(row)
        self._gone[1].append(row)

    def _put_correction(self, put: PutCorrection) -> None:
        if (old := self._corrections.find(put.uid)) is not None:
            self._corrections.remove(old)
        if (position := self._position(put.label)) is None:
            self._skipped += 1
            return
        self._corrections.add(put.uid, put.query, put.vector, position)

    def _position(self, uid: str) -> int | None:
        row = self._labels.find(uid)
        return None if row is None else self._position_of(row)

    def _position_of(self, row: int) -> int:
        """The position of the label that has a row."""
        live = row - self._labels.bundle_rows
        return row if live < 0 else int(self._labels.numbers.now[live])

    def _index_words(self, instances: int, labels: int) -> None:
        """Add the texts of new rows to the word indexes, from the given rows on, and remove those that are gone."""
        gone, self._gone = self._gone, ([], [])
        if self._words is None:
            return
        new_instances = self._instances.texts.live[instances - self._instances.bundle_rows :]
        new_labels = self._labels.texts.live[labels - self._labels.bundle_rows :]
        self._words = LexicalIndex(
            self._words.instances.add(new_instances).remove(gone[0], [self._instances.texts[row] for row in gone[0]]),
            self._words.labels.add(new_labels, self._labels.numbers.snapshot()).remove(
                gone[1], [self._labels.texts[row] for row in gone[1]]
            ),
        )

    def _snapshot(self) -> Snapshot:
        instances, labels = self._instances.snapshot(), self._labels.snapshot()
        votes, counts, row_of = self._votes.now, self._counts.snapshot(), self._row_of.snapshot()
        removed, base, names = self._removed.snapshot(), self._bundle.instances, self._names
        values = Values(
            bundle_values=base.values,
            labels=len(removed),
            live=votes,
            live_log_counts=self._log_counts.snapshot()[: len(self._log_counts) if self._weighted else 0],
            removed=removed if removed.any() else removed[:0],
        )
        voters = Voters(bundle_voters=base.voters, live=votes, present_counts=counts, removed=instances.removed)
        return Snapshot(
            sequence=self._sequence,
            skipped=self._skipped,
            oldest_seconds=None if math.isinf(self._oldest) else self._oldest,
            instances=instances,
            fields=self._fields,
            field_bytes=self._field_bytes,
            values=values,
            voters=voters,
            labels=Labels(self._bundle.labels, labels, row_of, removed, counts, self._label_fields),
            corrections=Corrections(self._corrections.snapshot()),
            words=self._words,
            names=names and Names(names.bundle_names, NameWords(*(rows.now for rows in self._live_names)), row_of),
        )
