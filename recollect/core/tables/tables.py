"""Tables: what a snapshot knows of its instances and labels, as the tables of a bundle do.

Numbers are those of `service.predictor.searcher`: the instances of the bundle, then live ones; the positions of the
bundle's labels, then those of new labels. A replaced label keeps its position. A removed instance or label keeps its
number, which no answer contains.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from recollect.core.bundle.bundle import LabelTable
from recollect.core.bundle.label_fields import Value, from_json, pair_of, prefix_of, term, terms, to_json
from recollect.core.bundle.values import Matrix, spans
from recollect.core.tables.rows import Rows, Strings

# Number of labels whose fields are kept after they were read: those of one answer, so that a batch reads them once.
_MOST_PARSED = 1_024


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
class LiveFields:
    """The fields of live labels. One thread adds rows, and a snapshot ignores rows after its own.

    Attributes:
        by_row: The fields of each live row that has any, as JSON.
        rows: The rows that have each term, in rising order.
        names: The names of the fields with terms.
    """

    by_row: dict[int, str] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def add(self, row: int, fields: Mapping[str, Any]) -> int:
        """Add the fields of a row, and return their size in memory, about."""
        self.by_row[row] = to_json(fields)
        found = terms(fields)
        for each in found:
            self.rows.setdefault(each, []).append(row)
            self.names.add(pair_of(each)[0])
        return sys.getsizeof(self.by_row[row]) + sum(map(sys.getsizeof, found))


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a memory. A label is stated by its position.

    Attributes:
        bundle_labels: The labels of the bundle.
        rows: The rows of the bundle's labels, then one for each new label and for each new text of a label.
        row_of: The last row of each label.
        removed: Whether each label was removed.
        counts: Number of instances with each label.
        live_fields: The fields of the live rows.
    """

    bundle_labels: LabelTable
    rows: Rows
    row_of: Int[np.ndarray, " label"]
    removed: Bool[np.ndarray, " label"]
    counts: Int[np.ndarray, " label"]
    live_fields: LiveFields = field(default_factory=LiveFields)
    _parsed: dict[int, Mapping[str, Any]] = field(default_factory=dict)

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

    @property
    def have_fields(self) -> bool:
        """Whether a label has, or had, fields."""
        return self.bundle_labels.fields is not None or bool(self.live_fields.by_row)

    def fields_of(self, position: int) -> Mapping[str, Any]:
        """The `LabelFields` of a label, those that it has. The last ones that were read are kept."""
        if (known := self._parsed.get(position)) is not None:
            return known
        row = self.row_of.item(position)
        if row >= self.rows.bundle_rows:
            text = self.live_fields.by_row.get(row, "")
        else:
            text = "" if self.bundle_labels.fields is None else self.bundle_labels.fields.json[row]
        fields = from_json(text)
        if len(self._parsed) >= _MOST_PARSED:
            self._parsed.clear()
        self._parsed[position] = fields
        return fields

    def with_value(self, field_name: str, value: Value) -> Int[np.ndarray, " found"]:
        """The positions of the labels that have a value of a field."""
        wanted, fields = term(field_name, value), self.bundle_labels.fields
        own = self._live_rows(wanted)
        return self.present_positions(own if fields is None else np.concatenate([fields.with_term(wanted), own]))

    def values_of(self, field_name: str) -> Iterator[tuple[Value, Int[np.ndarray, " found"]]]:
        """Yield the values of a field, with the positions of the labels that have them: first those of the bundle."""
        prefix, seen, fields = prefix_of(field_name), set[str](), self.bundle_labels.fields
        for each, rows in fields.beginning_with(prefix) if fields is not None else ():
            seen.add(each)
            if len(found := self.present_positions(np.concatenate([rows, self._live_rows(each)]))):
                yield pair_of(each)[1], found
        for each in [each for each in [*self.live_fields.rows] if each.startswith(prefix) and each not in seen]:
            if len(found := self.present_positions(self._live_rows(each))):
                yield pair_of(each)[1], found

    def valued_fields(self) -> set[str]:
        """The names of the fields with values by which labels can be chosen."""
        fields = self.bundle_labels.fields
        live = {*self.live_fields.names}
        return live if fields is None else live.union(fields.names())

    def below(self, uid: str) -> Int[np.ndarray, " found"]:
        """The positions of a label and of all labels below it, in no particular order. Each is found once."""
        fields, position = self.bundle_labels.fields, self.position(uid)
        of_bundle = {} if fields is None else fields.children
        found = dict[int, None]() if position is None else {position: None}
        wanted = [uid]
        while wanted:
            rows = [row for each in wanted for row in of_bundle.get(each, ())]
            live = [self._live_rows(term("parents", each)) for each in wanted if self.live_fields.by_row]
            children = self.present_positions(np.concatenate([np.array(rows, dtype=np.int64), *live])).tolist()
            new = dict.fromkeys(child for child in children if child not in found)
            found |= new
            wanted = [self.uids[child] for child in new]
        return np.array([*found], dtype=np.int64)

    def _live_rows(self, wanted: str) -> Int[np.ndarray, " row"]:
        rows = np.array(self.live_fields.rows.get(wanted, ()), dtype=np.int64)
        return rows[: rows.searchsorted(len(self.rows.removed))]

    def present_positions(self, rows: Int[np.ndarray, " row"]) -> Int[np.ndarray, " found"]:
        """The positions of the labels to which some rows belong, without rows that were replaced or removed."""
        return self.position_of(rows[~self.rows.removed[rows]])

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
