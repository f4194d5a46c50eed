"""Names: the words of each label's text, and where they occur in a query.

A label whose whole name is in a query is often true, above all if the name is among the first words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from recollect.service.bundle.arrays import map_array, map_offsets
from recollect.service.bundle.files import NAME_OFFSETS, NAME_WORDS
from recollect.service.bundle.values import gather_rows
from recollect.service.files import save_array
from recollect.service.lexical.terms import hash_query_word, hash_word, words

# Number of words of a query, from its first word, that are compared with names. Encoders read about as many.
_QUERY_WORDS, _CHARACTERS_PER_WORD = 128, 10


@dataclass(frozen=True)
class Overlap:
    """How much of each candidate's name is in the query.

    Attributes:
        words: Number of words of the name.
        share: Share of these words that are in the query; NaN for a name without words.
        place: Place in the query at which the whole name begins; NaN if the whole name is not in the query.
    """

    words: Int[np.ndarray, " candidate"]
    share: Float[np.ndarray, " candidate"]
    place: Float[np.ndarray, " candidate"]


@dataclass(frozen=True)
class Names:
    """The names of all labels: label l has the words `words[offsets[l] : offsets[l + 1]]`, each as a hash."""

    words: UInt64[np.ndarray, " word"]
    offsets: Int[np.ndarray, " offset"]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Names:
        hashes: list[int] = []
        offsets = [0]
        for text in texts:
            hashes += map(hash_word, words(text))
            offsets.append(len(hashes))
        return cls(np.array(hashes, dtype=np.uint64), np.array(offsets, dtype=np.int64))

    @classmethod
    def open_with(cls, open_file: Callable[..., Any], labels: int) -> Names:
        """Open the files of a bundle, each with `open_file`, as `Components.open` opens files.

        Raises:
            BundleError: If a file is damaged, or does not have the names of so many labels.
        """
        hashes = open_file(map_array, NAME_WORDS, "uint64")
        offsets = open_file(map_offsets, NAME_OFFSETS, labels, len(hashes))
        return cls(hashes, offsets)

    def write(self, folder: Path) -> None:
        save_array(folder / NAME_WORDS, self.words)
        save_array(folder / NAME_OFFSETS, self.offsets)

    def lengths(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        """The number of words of each name."""
        lengths: np.ndarray = self.offsets[labels + 1] - self.offsets[labels]
        return lengths

    def gather(self, labels: Int[np.ndarray, " label"]) -> tuple[Int[np.ndarray, " word"], UInt64[np.ndarray, " word"]]:
        """The words of some names, in order: the label's place in `labels`, and the word."""
        return gather_rows(self.offsets, self.words, labels)

    def overlap(
        self,
        queries: Sequence[str],
        query: Int[np.ndarray, " candidate"],
        label: Int[np.ndarray, " candidate"],
    ) -> Overlap:
        """Compare the names of candidates with their queries.

        Args:
            queries: The texts of the queries.
            query: The query of each candidate, in rising order.
            label: The label of each candidate.
        """
        count = self.lengths(label)
        share, place = np.full(len(label), np.nan), np.full(len(label), np.nan)
        rows = np.searchsorted(query, np.arange(len(queries) + 1))
        for nth, text in enumerate(queries):
            part = slice(rows[nth], rows[nth + 1])
            share[part], place[part] = self._overlap(text, label[part], count[part])
        return Overlap(count, share, place)

    def _overlap(
        self, text: str, label: Int[np.ndarray, " candidate"], count: Int[np.ndarray, " candidate"]
    ) -> tuple[Float[np.ndarray, " candidate"], Float[np.ndarray, " candidate"]]:
        beginning = words(text[: _QUERY_WORDS * _CHARACTERS_PER_WORD])[:_QUERY_WORDS]
        query = np.fromiter(map(hash_query_word, beginning), dtype=np.uint64)
        candidate, word = self.gather(label)
        first = _first_places(query, word)
        found = np.bincount(candidate[first < len(query)], minlength=len(label))
        share = np.divide(found, count, out=np.full(len(label), np.nan), where=count > 0)
        place = np.full(len(label), np.nan)
        single = (share == 1) & (count == 1)
        place[single] = first[single[candidate]]
        ends = np.cumsum(count)
        for whole in np.flatnonzero((share == 1) & (count > 1)).tolist():  # few names are in the query as a whole
            name = word[ends[whole] - count[whole] : ends[whole]]
            starts = np.flatnonzero(_contains_at(query, name))
            if len(starts):
                place[whole] = starts[0]
        return share, place


def _first_places(
    query: UInt64[np.ndarray, " query_word"], words: UInt64[np.ndarray, " word"]
) -> Int[np.ndarray, " word"]:
    """The first place of each word in the query; the length of the query if the word is not in it."""
    if not len(query):
        return np.zeros(len(words), dtype=np.int64)
    order = np.argsort(query, kind="stable")
    first = order[np.minimum(np.searchsorted(query, words, sorter=order), len(query) - 1)]
    return np.where(query[first] == words, first, len(query))


def _contains_at(
    query: UInt64[np.ndarray, " query_word"], name: UInt64[np.ndarray, " word"]
) -> Bool[np.ndarray, " start"]:
    """Whether the name begins at each place of the query."""
    starts = max(0, len(query) - len(name) + 1)
    begins = np.ones(starts, dtype=bool)
    for nth, word in enumerate(name):
        begins &= query[nth : nth + starts] == word
    return begins
