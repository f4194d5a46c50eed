"""Names: the words of each label's text and their stems, and where they occur in a query.

A label whose whole name is in a query is often true, above all if the name is among the first words. Stems also find
names in other grammatical forms. A stem that few names have tells more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Int, UInt64

from recollect.core.bundle.arrays import map_array, map_offsets
from recollect.core.bundle.files import NAME_OFFSETS, NAME_STEMS, NAME_WORDS, STEM_COUNTS
from recollect.core.bundle.values import Matrix, Rows
from recollect.core.system.files import save_array
from recollect.core.words.terms import Words, hash_word


class NameWords(NamedTuple):
    """The words of some names, in order: name i has row i of each matrix."""

    words: Matrix  # as hashes
    stems: Matrix  # as hashes
    counts: Matrix  # number of names of the bundle with each stem

    @classmethod
    def empty(cls) -> Self:
        return cls(Matrix.empty(np.uint64), Matrix.empty(np.uint64), Matrix.empty(np.int32))

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self)


@dataclass(frozen=True)
class Names:
    """The names of all labels.

    Attributes:
        bundle_names: The name of each label of a bundle.
        live: Live names, which are numbered after those.
        row_of: The number of the name of each label; None if it is the label.
    """

    bundle_names: NameWords
    live: NameWords = NameWords.empty()
    row_of: Int[np.ndarray, " label"] | None = None

    @classmethod
    def of(cls, texts: Iterable[str]) -> Names:
        found = Words.of(texts, hash_word)
        name = np.repeat(np.arange(len(found.offsets) - 1), np.diff(found.offsets))
        _, stem = np.unique(found.stems, return_inverse=True)
        pairs = np.unique(np.stack([stem, name]), axis=1)
        counts = np.bincount(pairs[0], minlength=1)[stem].astype(np.int32)
        return cls(NameWords(*(Matrix(found.offsets, items) for items in (found.hashes, found.stems, counts))))

    @classmethod
    def open_with(cls, open_file: Callable[..., Any], labels: int, has_stems: bool) -> Names:
        """Open the files of a bundle, each with `open_file`, as `Components.open` opens files."""
        words = open_file(map_array, NAME_WORDS, "uint64")
        offsets = open_file(map_offsets, NAME_OFFSETS, labels, len(words))
        stems, counts = words, np.zeros(len(words), dtype=np.int32)  # without stems, no feature reads them
        if has_stems:
            stems = open_file(map_array, NAME_STEMS, "uint64", len(words))
            counts = open_file(map_array, STEM_COUNTS, "int32", len(words))
        return cls(NameWords(*(Matrix(offsets, items) for items in (words, stems, counts))))

    def write(self, folder: Path) -> None:
        words, stems, counts = self.bundle_names
        save_array(folder / NAME_WORDS, words.indices)
        save_array(folder / NAME_OFFSETS, words.indptr)
        save_array(folder / NAME_STEMS, stems.indices)
        save_array(folder / STEM_COUNTS, counts.indices)

    def rows_of(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows of a live name in the matrices of `NameWords`."""
        found = Words.of([text], hash_word)
        return found.hashes, found.stems, self._counts_of(found.stems)

    def renamed(self, texts: Iterable[str]) -> Names:
        """The names of other texts, with the counts that live names have."""
        words, stems, _ = Names.of(texts).bundle_names
        return Names(NameWords(words, stems, Matrix(words.indptr, self._counts_of(stems.indices))))

    def _counts_of(self, stems: UInt64[np.ndarray, " word"]) -> Int[np.ndarray, " word"]:
        """The number of names of the bundle with each stem; 1 for a stem that none has."""
        known, first = self._known_stems
        place = np.minimum(known.searchsorted(stems), max(0, len(known) - 1))
        counts = np.ones(len(stems), dtype=np.int32)
        found = known[place] == stems if len(known) else np.zeros(len(stems), dtype=bool)
        counts[found] = self.bundle_names.counts.indices[first[place[found]]]
        return counts

    @functools.cached_property
    def _known_stems(self) -> tuple[UInt64[np.ndarray, " stem"], Int[np.ndarray, " stem"]]:
        """The stems of the bundle, in rising order, and a place of each."""
        known, first = np.unique(self.bundle_names.stems.indices, return_index=True)
        return known, first

    @property
    def arrays(self) -> tuple[Rows, Rows, Rows, Int[np.ndarray, " label"]]:
        """The arguments of a loop that reads names: words, stems, counts, and the number of the name of each label."""
        row_of = np.empty(0, dtype=np.int32) if self.row_of is None else self.row_of
        words, stems, counts = (
            (first.indptr, first.indices, live.indptr, live.indices)
            for first, live in zip(self.bundle_names, self.live, strict=True)
        )
        return _signed(words), _signed(stems), counts, row_of


def _signed(rows: Rows) -> Rows:
    """Hashes as the integers that numba compares without a conversion to floating point."""
    offsets, hashes, live_offsets, live_hashes = rows
    return offsets, hashes.view(np.int64), live_offsets, live_hashes.view(np.int64)
