"""The delta: everything that the entries of a log have added to the memory of a bundle, and taken from it.

One thread applies entries; a batch of entries takes time in proportion to its size, not to the size of the memory. The
views that `view` returned earlier do not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from recollect.service.bundle.bundle import Bundle
from recollect.service.bundle.strings import StringTable
from recollect.service.lexical.index import LexicalIndex
from recollect.service.lexical.terms import hash_word, words
from recollect.service.memory.corrections import Corrections
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
from recollect.service.memory.growing import GrowingArray, GrowingRows, VersionedArray
from recollect.service.memory.layers import LiveLabels, LiveNames, LiveStrings, LiveValues, LiveVoters
from recollect.service.memory.live_table import GrowingEnds, LiveTable
from recollect.service.memory.view import Status, UidIndex, View
from recollect.service.ranking.names import Names


class Delta:
    """Applies entries to the memory of a bundle.

    Args:
        bundle: The bundle.
        lexical: Its word indexes; None if it has none.
        names: The names of its labels; None if it has no ranker.
    """

    def __init__(self, bundle: Bundle, lexical: LexicalIndex | None = None, names: Names | None = None) -> None:
        self._bundle, self._base, self._words, self._names = bundle, bundle.instances, lexical, names
        self._uids = UidIndex(bundle.instances.uids)
        self._mapped, self._mapped_labels = len(bundle.instances.uids), len(bundle.labels)
        self._dim = bundle.manifest.dim
        self._instances, self._labels, self._corrections = (LiveTable(self._dim) for _ in range(3))
        self._votes, self._log_counts, self._weighted = GrowingRows(np.int32), GrowingArray(np.float64), 0
        self._instance_ends, self._label_key_ends = GrowingEnds(self._mapped), GrowingEnds(self._mapped_labels)
        self._label_ends = GrowingEnds(self._mapped_labels)
        self._label_rows = VersionedArray(np.full(self._mapped_labels, -1))
        self._counts = VersionedArray(bundle.labels.counts)
        none = np.zeros(self._mapped_labels, dtype=bool)
        self._has_live, self._has_correction = (GrowingArray(np.bool_, content=none) for _ in range(2))
        self._live_voters: dict[int, list[int]] = {}
        self._corrected: dict[int, list[int]] = {}
        self._name_words = GrowingRows(np.uint64)
        self._removed_words: tuple[list[int], list[int]] = ([], [])  # instances and labels, by rows of the word index
        self._sequence, self._skipped, self._oldest = bundle.manifest.memory_sequence, 0, math.inf

    def apply(self, entries: Sequence[LoggedEntry]) -> View:
        """Apply entries in order, and return the new view. Entries that were applied earlier change nothing.

        Raises:
            ValueError: If a vector has another length, or a weight is not positive. No entry is applied.
        """
        for each in entries:
            self._check(each.entry)
        instances, labels = len(self._instances), len(self._labels)
        for logged in entries:
            if logged.sequence <= self._sequence:
                continue
            self._sequence = logged.sequence
            self._apply(logged.entry)
            self._oldest = min(self._oldest, logged.seconds)
        self._index_words(instances, labels)
        return self.view()

    def _apply(self, entry: Entry) -> None:
        match entry:
            case PutInstance() as put:
                self._put_instance(put)
            case PutLabel() as put_label:
                self._put_label(put_label)
            case RemoveInstance(uid):
                if (number := self._find_instance(uid)) is not None:
                    self._end_instance(number)
            case RemoveLabel(uid):
                self._remove_label(uid)
            case PutCorrection() as correction:
                self._put_correction(correction)
            case RemoveCorrection(uid):
                self._end_correction(uid)

    def _check(self, entry: Entry) -> None:
        if isinstance(entry, PutInstance | PutLabel | PutCorrection) and entry.vector.shape != (self._dim,):
            raise ValueError(f"{entry.uid!r}: expected {self._dim} dimensions, found a vector of {entry.vector.shape}")
        if isinstance(entry, PutInstance) and not entry.weight > 0:
            raise ValueError(f"{entry.uid!r}: expected a positive weight, found {entry.weight}")

    def _put_instance(self, put: PutInstance) -> None:
        found = [self._find_label(uid) for uid in put.labels]
        positions = np.unique([position for position in found if position is not None]).astype(np.int32)
        self._skipped += None in found
        if not len(positions):
            return
        if (old := self._find_instance(put.uid)) is not None:
            self._end_instance(old)
        row = self._instances.add(put.uid, put.text, put.vector, self._mapped + len(self._instances))
        self._votes.append(positions)
        self._log_counts.append(math.log(put.weight))
        self._weighted += put.weight != 1
        for position in positions.tolist():
            self._counts[position] += 1
            self._live_voters.setdefault(position, []).append(row)
            self._has_live.content[position] = True

    def _put_label(self, put: PutLabel) -> None:
        position = self._find_label(put.uid)
        if position is None:
            position = len(self._has_live)
            self._has_live.append(False)
            self._has_correction.append(False)
            self._counts.append(0)
            self._label_rows.append(-1)
            self._label_ends.append()
        else:
            self._end_label_key(position)
        self._label_rows[position] = self._labels.add(put.uid, put.text, put.vector, position)
        if self._names is not None:
            self._name_words.append(np.fromiter(map(hash_word, words(put.text)), dtype=np.uint64))

    def _remove_label(self, uid: str) -> None:
        position = self._find_label(uid)
        if position is None:
            return
        view = self.view()
        _, voters = view.voters.gather(np.array([position]))
        place, label = view.values.gather(voters)
        alone = np.delete(voters, place[label != position]).tolist()  # instances without another label
        self._end_label_key(position)
        self._label_ends.end(position, self._sequence)
        for number in alone:
            self._end_instance(number)
        self._counts[position] = 0

    def _put_correction(self, put: PutCorrection) -> None:
        position = self._find_label(put.label)
        if position is None:
            self._skipped += 1
            return
        self._end_correction(put.uid)
        row = self._corrections.add(put.uid, put.query, put.vector, position)
        self._corrected.setdefault(position, []).append(row)
        self._has_correction.content[position] = True

    def _end_correction(self, uid: str) -> None:
        if (row := self._corrections.find(uid)) is not None:
            self._corrections.ends.end(row, self._sequence)

    def _labels_of(self, number: int) -> Int[np.ndarray, " label"]:
        live = number - self._mapped
        if live < 0:
            return self._base.values.gather(np.array([number]))[1]
        votes = self._votes.content
        labels: np.ndarray = votes.items[votes.offsets[live] : votes.offsets[live + 1]]
        return labels

    def _end_instance(self, number: int) -> None:
        live = number - self._mapped
        if live < 0:
            self._instance_ends.end(number, self._sequence)
        else:
            self._instances.ends.end(live, self._sequence)
            self._weighted -= self._log_counts.content[live] != 0
        self._removed_words[0].append(number)
        for position in self._labels_of(number).tolist():
            if self._label_ends.is_present(position):
                self._counts[position] -= 1

    def _end_label_key(self, position: int) -> None:
        """End the present key and text of a label."""
        row = self._label_rows[position]
        if row < 0:
            self._label_key_ends.end(position, self._sequence)
        else:
            self._labels.ends.end(row, self._sequence)
        self._removed_words[1].append(position if row < 0 else self._mapped_labels + row)

    def _find_instance(self, uid: str) -> int | None:
        if (live := self._instances.find(uid)) is not None:
            return self._mapped + live
        row = self._uids.find(uid)
        return row if row is not None and self._instance_ends.is_present(row) else None

    def _find_label(self, uid: str) -> int | None:
        if (live := self._labels.find(uid)) is not None:
            return int(self._labels.numbers.content[live])
        position = self._bundle.labels.position(uid)
        return position if position is not None and self._label_ends.is_present(position) else None

    def _index_words(self, instances: int, labels: int) -> None:
        """Add the texts of new rows to the word indexes, from the given rows on, and remove those that have ended."""
        (ended_instances, ended_labels), self._removed_words = self._removed_words, ([], [])
        if self._words is None:
            return
        by_instances = self._words.instances.add(self._instances.texts[instances:])
        by_labels = self._words.labels.add(self._labels.texts[labels:], self._labels.numbers.content)
        self._words = LexicalIndex(
            by_instances.remove(
                ended_instances,
                [_text(self._base.texts, self._instances.texts, row) for row in ended_instances],
            ),
            by_labels.remove(
                ended_labels, [_text(self._bundle.labels.texts, self._labels.texts, row) for row in ended_labels]
            ),
        )

    def view(self) -> View:
        """The memory after the entries that were applied."""
        sequence, mapped = self._sequence, self._mapped
        instances, labels = self._instances.at(sequence), self._labels.at(sequence)
        corrections, counts = self._corrections.at(sequence), self._counts.snapshot()
        label_ends, instance_ends = self._label_ends.at(sequence), self._instance_ends.at(sequence)
        label_rows, votes = self._label_rows.snapshot(), self._votes.content
        bundle, base = self._bundle, self._base

        return View(
            sequence=sequence,
            status=Status(
                instances=mapped - instance_ends.ended + instances.present,
                labels=len(label_ends.ends) - label_ends.ended,
                corrections=corrections.present,
                live_keys=instances.count + labels.count + corrections.count,
                skipped=self._skipped,
                oldest_seconds=None if math.isinf(self._oldest) else self._oldest,
            ),
            values=LiveValues(
                mapped=base.values,
                labels=len(label_ends.ends),
                live=votes,
                live_log_counts=self._log_counts.content if self._weighted else None,
                label_ends=label_ends,
            ),
            voters=LiveVoters(
                mapped=base.voters,
                mapped_labels=self._mapped_labels,
                live=self._live_voters,
                live_pairs=len(votes.items),
                has_live=self._has_live.content,
                present_counts=counts,
                instance_ends=instance_ends,
                instances=instances,
            ),
            labels=LiveLabels(
                uids=LiveStrings(bundle.labels.uids, self._labels.uids, label_rows.at),
                texts=LiveStrings(bundle.labels.texts, self._labels.texts, label_rows.at),
                counts=counts,
                ends=label_ends,
                mapped=bundle.labels,
                live=labels,
                rows=label_rows,
            ),
            instance_uids=LiveStrings(base.uids, self._instances.uids, lambda number: number - mapped),
            instance_texts=LiveStrings(base.texts, self._instances.texts, lambda number: number - mapped),
            instances=instances,
            corrections=Corrections(corrections, self._corrected, self._has_correction.content),
            instance_ends=instance_ends,
            label_key_ends=self._label_key_ends.at(sequence),
            words=self._words,
            names=None
            if self._names is None
            else LiveNames(self._names.words, self._names.offsets, live=self._name_words.content, rows=label_rows),
            uids=self._uids,
        )


def _text(mapped: StringTable, live: list[str], row: int) -> str:
    """The text of a row of a word index."""
    return mapped[row] if row < len(mapped) else live[row - len(mapped)]
