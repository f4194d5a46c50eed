"""The table of the fields of labels in a bundle: the fields of each label as JSON, and the labels of each term."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from recollect.core.bundle.arrays import map_array, map_offsets, map_positions
from recollect.core.bundle.components import Components
from recollect.core.bundle.files import LABEL_FIELDS, LABEL_TERMS, TERM_LABELS, TERM_OFFSETS, table_files
from recollect.core.bundle.label_fields import from_json, pair_of, prefix_of, terms
from recollect.core.bundle.strings import StringTable, write_table
from recollect.core.bundle.values import Matrix
from recollect.core.system.files import save_array


@dataclass(frozen=True, eq=False)
class FieldTable:
    """The fields of the labels of a bundle.

    Attributes:
        json: The fields of each label.
        terms: The terms, sorted by their bytes.
        labels: The labels that have each term.
    """

    json: StringTable
    terms: StringTable
    labels: Matrix

    @classmethod
    def open(cls, components: Components, labels: int) -> FieldTable:
        """Map the fields of a bundle with a number of labels."""
        (utf8_file, offsets_file), (terms_file, term_offsets_file) = table_files(LABEL_FIELDS), table_files(LABEL_TERMS)
        utf8, terms_utf8 = (
            components.open(map_array, utf8_file, "uint8"),
            components.open(map_array, terms_file, "uint8"),
        )
        count = len(components.open(map_array, TERM_OFFSETS, "int64")) - 1
        pairs = len(components.open(map_array, TERM_LABELS, "int32"))
        return cls(
            StringTable(utf8, components.open(map_offsets, offsets_file, labels, len(utf8))),
            StringTable(terms_utf8, components.open(map_offsets, term_offsets_file, count, len(terms_utf8))),
            Matrix(
                components.open(map_offsets, TERM_OFFSETS, count, pairs),
                components.open(map_positions, TERM_LABELS, pairs, labels),
            ),
        )

    def with_term(self, wanted: str) -> Int[np.ndarray, " label"]:
        """The labels that have a term."""
        row = self.terms.find(wanted, self._order)
        return self.labels.gather(np.array([] if row is None else [row], dtype=np.int64))[1]

    def beginning_with(self, prefix: str) -> Iterator[tuple[str, Int[np.ndarray, " label"]]]:
        """Yield the terms that begin with `prefix`, with their labels."""
        for row in self.terms.beginning_with(prefix, self._order):
            yield self.terms[row], self.labels.indices[self.labels.indptr[row] : self.labels.indptr[row + 1]]

    def names(self) -> Iterator[str]:
        """Yield the names of the fields that have terms."""
        row = 0
        while row < len(self.terms):
            name = pair_of(self.terms[row])[0]
            yield name
            last = prefix_of(name).encode() + b"\xff"  # after all terms of the field
            row = max(row + 1, bisect_left(range(len(self.terms)), last, row, key=self.terms.raw))

    @functools.cached_property
    def children(self) -> dict[str, list[int]]:
        """The labels that name each label as a parent, by its uid."""
        pairs = self.beginning_with(prefix_of("parents"))
        return {str(pair_of(each)[1]): labels.tolist() for each, labels in pairs}

    @functools.cached_property
    def _order(self) -> Int[np.ndarray, " term"]:
        return np.arange(len(self.terms), dtype=np.int32)


def write_field_table(folder: Path, fields: Iterable[str]) -> None:
    """Write the fields of all labels, each as JSON, into a bundle folder; nothing if no label has any."""
    found: dict[str, list[int]] = {}
    listed = [*fields]
    if not any(listed):
        return
    for label, text in enumerate(listed):
        for each in terms(from_json(text)):
            found.setdefault(each, []).append(label)
    write_table(folder, LABEL_FIELDS, listed)
    ordered = sorted(found, key=str.encode)
    write_table(folder, LABEL_TERMS, ordered)
    save_array(folder / TERM_OFFSETS, np.cumsum([0, *(len(found[each]) for each in ordered)], dtype=np.int64))
    labels = [label for each in ordered for label in found[each]]
    save_array(folder / TERM_LABELS, np.array(labels, dtype=np.int32))
