"""Tables: what a snapshot knows of its instances and labels, as the tables of a bundle do.

Numbers are those of `service.predictor.searcher`: the instances of the bundle, then live ones; the positions of the
bundle's labels, then those of new labels. A replaced label keeps its position. A removed instance or label keeps its
number, which no answer contains.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt64

from recollect.service.bundle.bundle import LabelTable
from recollect.service.bundle.values import ValueArrays, Values, Voters, gather_rows, spans
from recollect.service.memory.rows import Rows, Strings
from recollect.service.ranking.names import Names

# Gathers rows of a matrix: for each entry, its row's place in the argument, in rising order, and its column number.
Gather = Callable[[Int[np.ndarray, " row"]], tuple[Int[np.ndarray, " entry"], Shaped[np.ndarray, " entry"]]]


@dataclass(frozen=True, eq=False)
class Matrix:
    """Rows of different lengths: row i has the items `items[offsets[i] : offsets[i + 1]]`."""

    offsets: Int[np.ndarray, " offset"]
    items: Shaped[np.ndarray, " item"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveValues(Values):
    """The labels that instances of a bundle and live instances vote for. Votes for removed labels are left out.

    Attributes:
        mapped: The labels of the instances of the bundle.
        live: The labels of the live instances.
        live_log_counts: The logarithm of each live instance's count; empty if every count is 1.
        removed: Whether each label was removed; empty if no label was.
    """

    mapped: Values
    labels: int
    live: Matrix
    live_log_counts: Float[np.ndarray, " live"]
    removed: Bool[np.ndarray, " label"]

    @property
    def instances(self) -> int:
        return self.mapped.instances + len(self.live.offsets) - 1

    def arrays(self) -> ValueArrays:
        return self.mapped.arrays()._replace(
            live_offsets=self.live.offsets,
            live_labels=self.live.items,
            live_log_counts=self.live_log_counts,
            removed=self.removed,
        )

    def gather(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        place, label = _gather_layers(self.mapped.gather, self.mapped.instances, self.live, rows)
        if not len(self.removed):
            return place, label
        present = ~self.removed[label]
        return place[present], label[present]

    def log_counts_of(self, keys: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."] | float:
        if not len(self.live_log_counts):
            return 0.0
        mapped, found = self.mapped.instances, np.zeros(keys.shape)
        is_live = (keys >= mapped) & (keys < self.instances)
        found[is_live] = self.live_log_counts[keys[is_live] - mapped]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveVoters(Voters):
    """The instances that vote for each label, live instances included.

    Attributes:
        mapped: The instances of the bundle that vote for each label.
        mapped_labels: Number of labels of the bundle.
        live: The labels of the live instances.
        present_counts: Number of instances that vote for each label.
        removed: Whether each instance was removed.
    """

    mapped: Voters
    mapped_labels: int
    live: Matrix
    present_counts: Int[np.ndarray, " label"]
    removed: Bool[np.ndarray, " instance"]

    @property
    def pairs(self) -> int:
        return self.mapped.pairs + len(self.live.items)

    def counts(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        counts: np.ndarray = self.present_counts[labels]
        return counts

    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        mapped = np.flatnonzero(labels < self.mapped_labels)
        place, voter = self.mapped.gather(labels[mapped])
        by_label, voters = self._live_by_label
        starts, ends = by_label.searchsorted(labels), by_label.searchsorted(labels, "right")
        live_place, vote = spans(starts, ends - starts)
        places, found = np.concatenate([mapped[place], live_place]), np.concatenate([voter, voters[vote]])
        present = ~self.removed[found]
        return places[present], found[present]

    @functools.cached_property
    def _live_by_label(self) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]:
        """The pairs of a label and a live instance, in order of the labels. The first filter of a snapshot sorts."""
        instances = len(self.live.offsets) - 1
        live = np.repeat(np.arange(instances), np.diff(self.live.offsets)) + len(self.removed) - instances
        order = np.argsort(self.live.items)
        return self.live.items[order], live[order]


@dataclass(frozen=True, kw_only=True)
class LiveNames(Names):
    """The names of all labels.

    Attributes:
        live: The names of the live rows of labels.
        rows: The row of each label.
    """

    live: Matrix
    rows: Int[np.ndarray, " label"]

    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " word"], UInt64[np.ndarray, " word"]]:
        gather = functools.partial(gather_rows, self.offsets, self.words)
        return _gather_layers(gather, len(self.offsets) - 1, self.live, self.rows[labels])


@dataclass(frozen=True, eq=False)
class Instances:
    """The instances of a memory. An instance is stated by its number, which is its row.

    Attributes:
        rows: Their uids, texts and vectors.
        values: The labels that each instance votes for.
        voters: The instances that vote for each label.
    """

    rows: Rows
    values: Values
    voters: Voters

    @property
    def uids(self) -> Strings:
        return self.rows.uids

    @property
    def texts(self) -> Strings:
        return self.rows.texts


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a memory. A label is stated by its position.

    Attributes:
        mapped: The labels of the bundle.
        rows: The rows of the bundle's labels, then one for each new label and for each new text of a label.
        row_of: The last row of each label.
        removed: Whether each label was removed.
        counts: Number of instances with each label.
    """

    mapped: LabelTable
    rows: Rows
    row_of: Int[np.ndarray, " label"]
    removed: Bool[np.ndarray, " label"]
    counts: Int[np.ndarray, " label"]

    def __len__(self) -> int:
        """Number of positions, with those of removed labels."""
        return len(self.removed)

    @functools.cached_property
    def uids(self) -> Strings:
        """Uids by position."""
        return Strings(self.rows.uids.mapped, self.rows.uids.live, self.row_of)

    @functools.cached_property
    def texts(self) -> Strings:
        """Texts by position."""
        return Strings(self.rows.texts.mapped, self.rows.texts.live, self.row_of)

    def present(self) -> Bool[np.ndarray, " label"]:
        """Whether each label is present."""
        return ~self.removed

    def position(self, uid: str) -> int | None:
        row = self.rows.find(uid)
        return None if row is None else int(self.position_of(np.array([row]))[0])

    def position_of(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        """The positions of the labels to which some rows belong."""
        positions, is_live = rows.astype(np.int64), rows >= self.rows.mapped
        positions[is_live] = self.rows.numbers[rows[is_live] - self.rows.mapped]
        return positions

    def positions(self, uids: Iterable[str]) -> Int[np.ndarray, " found"]:
        """The positions of the known uids, in no particular order; unknown uids are skipped."""
        uids = [*uids]
        mapped = self.mapped.positions(uids)
        live = [row for uid in uids if (row := self.rows.find_live(uid)) is not None]
        return self.position_of(np.concatenate([mapped[~self.rows.removed[mapped]], live]).astype(np.int64))


def _gather_layers(
    gather: Gather, mapped: int, live: Matrix, rows: Int[np.ndarray, " row"]
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
