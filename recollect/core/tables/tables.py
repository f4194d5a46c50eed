"""Tables: what a snapshot knows of its instances and labels, as the tables of a bundle do.

Numbers are those of `service.predictor.searcher`: the instances of the bundle, then live ones; the positions of the
bundle's labels, then those of new labels. A replaced label keeps its position. A removed instance or label keeps its
number, which no answer contains.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from recollect.core.bundle.bundle import LabelTable
from recollect.core.bundle.values import Matrix, spans
from recollect.core.tables.rows import Rows, Strings


@dataclass(frozen=True, kw_only=True, eq=False)
class Voters:
    """The instances that vote for each label, live instances included.

    Attributes:
        bundle_voters: The instances of the bundle that vote for each label.
        live: The labels of the live instances.
        present_counts: Number of instances that vote for each label.
        removed: Whether each instance was removed.
    """

    bundle_voters: Matrix
    live: Matrix
    present_counts: Int[np.ndarray, " label"]
    removed: Bool[np.ndarray, " instance"]

    @property
    def pairs(self) -> int:
        """The number of votes of all instances, or more."""
        return len(self.bundle_voters.indices) + len(self.live.indices)

    def counts(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        """The number of instances that vote for each label."""
        counts: np.ndarray = self.present_counts[labels]
        return counts

    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        """The votes for some labels, in no particular order: the label's place in `labels`, and the instance."""
        of_bundle = np.flatnonzero(labels < len(self.bundle_voters))
        place, voter = self.bundle_voters.gather(labels[of_bundle])
        by_label, voters = self._live_by_label
        starts, ends = by_label.searchsorted(labels), by_label.searchsorted(labels, "right")
        live_place, vote = spans(starts, ends - starts)
        places, found = np.concatenate([of_bundle[place], live_place]), np.concatenate([voter, voters[vote]])
        present = ~self.removed[found]
        return places[present], found[present]

    @functools.cached_property
    def _live_by_label(self) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]:
        """The pairs of a label and a live instance, in order of the labels. The first filter of a snapshot sorts."""
        live = np.repeat(np.arange(len(self.live)), np.diff(self.live.indptr)) + len(self.removed) - len(self.live)
        order = np.argsort(self.live.indices)
        return self.live.indices[order], live[order]


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a memory. A label is stated by its position.

    Attributes:
        bundle_labels: The labels of the bundle.
        rows: The rows of the bundle's labels, then one for each new label and for each new text of a label.
        row_of: The last row of each label.
        removed: Whether each label was removed.
        counts: Number of instances with each label.
    """

    bundle_labels: LabelTable
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
        return Strings(self.rows.uids.bundle_strings, self.rows.uids.live, self.row_of)

    @functools.cached_property
    def texts(self) -> Strings:
        """Texts by position."""
        return Strings(self.rows.texts.bundle_strings, self.rows.texts.live, self.row_of)

    def present(self) -> Bool[np.ndarray, " label"]:
        """Whether each label is present."""
        return ~self.removed

    def position(self, uid: str) -> int | None:
        row = self.rows.find(uid)
        return None if row is None else int(self.position_of(np.array([row]))[0])

    def position_of(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        """The positions of the labels to which some rows belong."""
        positions, is_live = rows.astype(np.int64), rows >= self.rows.bundle_rows
        positions[is_live] = self.rows.numbers[rows[is_live] - self.rows.bundle_rows]
        return positions

    def positions(self, uids: Iterable[str]) -> Int[np.ndarray, " found"]:
        """The positions of the known uids, in no particular order; unknown uids are skipped."""
        uids = [*uids]
        of_bundle = self.bundle_labels.positions(uids)
        live = [row for uid in uids if (row := self.rows.find_live(uid)) is not None]
        return self.position_of(np.concatenate([of_bundle[~self.rows.removed[of_bundle]], live]).astype(np.int64))
