"""Layers: the tables of a bundle, without the rows that have ended, and with the live rows after them.

Numbers are those of `service.predictor.searcher`: the instances of the bundle, then the live instances; the positions
of the bundle's labels, then those of new labels. A replaced label keeps its position. A row that has ended keeps its
number, which no answer contains.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt64

from recollect.service.bundle.bundle import InstanceTable, LabelTable
from recollect.service.bundle.strings import StringTable
from recollect.service.bundle.values import ValueArrays, Values, Voters, gather_rows
from recollect.service.memory.growing import Rows, Versions
from recollect.service.memory.live_table import Ends, LiveRows
from recollect.service.ranking.names import Names

# Gathers rows of a matrix: for each entry, its row's place in the argument, in rising order, and its column number.
Gather = Callable[[Int[np.ndarray, " row"]], tuple[Int[np.ndarray, " entry"], Shaped[np.ndarray, " entry"]]]


@dataclass(frozen=True, kw_only=True)
class LiveValues(Values):
    """The labels that instances of a bundle and live instances vote for. Votes for removed labels are left out.

    Attributes:
        mapped: The labels of the instances of the bundle.
        labels: Number of labels.
        live: The labels of each live instance.
        live_log_counts: The logarithm of each live instance's count; None means that every count is 1.
        label_ends: The ends of the labels.
    """

    mapped: Values
    labels: int
    live: Rows
    live_log_counts: Float[np.ndarray, " live"] | None
    label_ends: Ends

    @property
    def instances(self) -> int:
        return self.mapped.instances + len(self.live)

    def arrays(self) -> ValueArrays:
        return self._arrays

    @functools.cached_property
    def _arrays(self) -> ValueArrays:
        ends, counts = self.label_ends, self.live_log_counts
        return self.mapped.arrays()._replace(
            live_offsets=self.live.offsets,
            live_labels=self.live.items,
            live_log_counts=np.empty(0) if counts is None else counts,
            removed=~ends.present(np.arange(self.labels)) if ends.ended else np.empty(0, dtype=np.bool_),
        )

    def gather(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        place, label = gather_layers(self.mapped.gather, self.mapped.instances, self.live, rows)
        if not self.label_ends.ended:
            return place, label
        present = self.label_ends.present(label)
        return place[present], label[present]

    def log_counts_of(self, keys: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."] | float:
        if self.live_log_counts is None:
            return 0.0
        mapped, found = self.mapped.instances, np.zeros(keys.shape)
        is_live = (keys >= mapped) & (keys < self.instances)
        found[is_live] = self.live_log_counts[keys[is_live] - mapped]
        return found


@dataclass(frozen=True, kw_only=True)
class LiveVoters(Voters):
    """The instances that vote for each label, live instances included.

    Attributes:
        mapped: The instances of the bundle that vote for each label.
        mapped_labels: Number of labels of the bundle.
        live: At least the live instances that vote for each label, in order of their rows.
        has_live: Whether a label has such instances, or had some.
        present_counts: Number of instances that vote for each label.
        instance_ends: The ends of the instances of the bundle.
        instances: The live instances.
    """

    mapped: Voters
    mapped_labels: int
    live: dict[int, list[int]]
    live_pairs: int
    has_live: Bool[np.ndarray, " label"]
    present_counts: Versions
    instance_ends: Ends
    instances: LiveRows

    @property
    def pairs(self) -> int:
        return self.mapped.pairs + self.live_pairs

    def counts(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        return self.present_counts[labels]

    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        mapped = np.flatnonzero(labels < self.mapped_labels)
        place, row = self.mapped.gather(labels[mapped])
        present = self.instance_ends.present(row)
        places, keys = [mapped[place[present]]], [row[present].astype(np.int64)]
        for nth in np.flatnonzero(self.has_live[labels]).tolist():
            live = np.array(self.live[int(labels[nth])], dtype=np.int64)
            live = live[: live.searchsorted(self.instances.count)]
            live = live[self.instances.ends.present(live)]
            places.append(np.full(len(live), nth))
            keys.append(live + len(self.instance_ends.ends))
        return np.concatenate(places), np.concatenate(keys)


@dataclass(frozen=True, kw_only=True)
class LiveNames(Names):
    """The names of all labels.

    Attributes:
        live: The names of the live labels.
        rows: The row in `live` of each label; -1 for a label whose name is that of the bundle.
    """

    live: Rows
    rows: Versions

    def lengths(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        return np.bincount(self.gather(labels)[0], minlength=len(labels))

    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " word"], UInt64[np.ndarray, " word"]]:
        live = self.rows[labels]
        rows = np.where(live < 0, labels, live + len(self.offsets) - 1)
        gather = functools.partial(gather_rows, self.offsets, self.words)
        return gather_layers(gather, len(self.offsets) - 1, self.live, rows)


@dataclass(frozen=True)
class LiveStrings:
    """The strings of a bundle and live strings.

    Attributes:
        mapped: The strings of the bundle.
        live: The live strings.
        row: The row in `live` of a number; negative for a string of the bundle.
    """

    mapped: StringTable
    live: list[str]
    row: Callable[[int], int]

    def __len__(self) -> int:
        return len(self.mapped) + len(self.live)

    def __getitem__(self, number: int) -> str:
        row = self.row(number)
        return self.mapped[number] if row < 0 else self.live[row]


@dataclass(frozen=True, eq=False)
class LiveInstances:
    """The instances of a memory. An instance is stated by its number.

    Attributes:
        values: The labels that each instance votes for.
        voters: The instances that vote for each label.
        uids: Uids of the instances.
        texts: Their texts.
    """

    values: LiveValues
    voters: LiveVoters
    uids: LiveStrings
    texts: LiveStrings


@dataclass(frozen=True, eq=False)
class LiveLabels:
    """The labels of a memory; a label is found by its position or by its uid.

    Attributes:
        uids: Uids by position.
        texts: Texts by position.
        counts: Number of instances with each label.
        ends: The ends of the labels.
        mapped: The labels of the bundle.
        live: New labels, and new texts of labels.
        rows: The row in `live` of each label; -1 for a label with the text and the key of the bundle.
    """

    uids: LiveStrings
    texts: LiveStrings
    counts: Versions
    ends: Ends
    mapped: LabelTable
    live: LiveRows
    rows: Versions

    def __len__(self) -> int:
        """Number of positions, with those of removed labels."""
        return len(self.ends.ends)

    def present(self) -> Bool[np.ndarray, " label"]:
        """Whether each label is present."""
        return self.ends.present(np.arange(len(self)))

    def position(self, uid: str) -> int | None:
        if (row := self.live.find(uid)) is not None:
            return int(self.live.numbers[row])
        position = self.mapped.position(uid)
        return position if position is not None and self.ends.present(np.array(position)) else None

    def positions(self, uids: Iterable[str]) -> Int[np.ndarray, " found"]:
        """The positions of the known uids, in no particular order; unknown uids are skipped."""
        mapped, live = [], []
        for uid in uids:
            row = self.live.find(uid)
            if row is None:
                mapped.append(uid)
            else:
                live.append(row)
        positions = self.mapped.positions(mapped)
        return np.concatenate([positions[self.ends.present(positions)], self.live.numbers[live]])


# The instances and the labels of a bundle, or of a memory with live entries.
Instances = InstanceTable | LiveInstances
Labels = LabelTable | LiveLabels


def gather_layers(
    gather: Gather, mapped: int, live: Rows, rows: Int[np.ndarray, " row"]
) -> tuple[Int[np.ndarray, " entry"], Shaped[np.ndarray, " entry"]]:
    """Gather rows of a matrix and of live rows after it.

    Args:
        gather: Gathers rows of the matrix.
        mapped: Number of its rows.
        live: The live rows.
        rows: The rows to gather; those from `mapped` on are live.
    """
    is_live = rows >= mapped
    if not is_live.any():
        return gather(rows)
    first, second = np.flatnonzero(~is_live), np.flatnonzero(is_live)
    place, item = gather(rows[first])
    live_place, live_item = gather_rows(live.offsets, live.items, rows[second] - mapped)
    places, found = np.concatenate([first[place], second[live_place]]), np.concatenate([item, live_item])
    order = np.argsort(places, kind="stable")
    return places[order], found[order]
