"""Accumulation: the sums of the terms' contributions to the similarities of texts.

The cheapest method depends on the number of postings of a term and on the number of texts in question:

    sum_postings    all texts that contain a term; for few postings
    scan            some texts, by reading all postings; for thousands of postings
    search          some texts, by binary search; for long postings
    FrequentTerms   some texts, by a table; for the most frequent terms of an index
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float16, Int

from recollect.service.lexical.postings import Postings

# A table with an item for each text is faster than a sort, if it has at most this number of items for each posting.
_ITEMS_PER_POSTING = 8
# Number of items of the table with which `scan` recognises rows: it stays in the processor's cache.
_MARKS = 1 << 16
# A term is frequent if more than this share of the texts contains it. Maximum number of items of the table.
_FREQUENT, _MOST_ITEMS = 1 / 16, 1 << 24


@dataclass(frozen=True)
class Terms:
    """Some terms of a query, and their postings in each part of an index.

    Attributes:
        parts: The parts of the index.
        slices: The first and the last posting (exclusive) of each term in each part.
        weights: The weight of each term in the query.
    """

    parts: tuple[Postings, ...]
    slices: Int[np.ndarray, "part 2 term"]
    weights: Float[np.ndarray, " term"]

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, terms: slice | Bool[np.ndarray, " term"] | Int[np.ndarray, " chosen"]) -> Terms:
        return Terms(self.parts, self.slices[:, :, terms], self.weights[terms])


def sum_postings(terms: Terms, texts: int) -> tuple[Int[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """The rows that contain a term, in ascending order, and the sum of each row; `texts` is the number of all rows."""
    rows, shares = [], []
    for part, (starts, ends) in zip(terms.parts, terms.slices, strict=True):
        counts = ends - starts
        stops = np.cumsum(counts)
        posting = np.arange(stops[-1]) + (starts - stops + counts).repeat(counts)
        rows.append(part.rows.take(posting))
        shares.append(part.weights.take(posting) * terms.weights.repeat(counts))
    row, share = np.concatenate(rows), np.concatenate(shares)
    if texts <= _ITEMS_PER_POSTING * len(row):
        sums = np.bincount(row, weights=share, minlength=texts).astype(np.float32)
        found = np.flatnonzero(sums > 0)
        return found.astype(np.int32), sums[found]
    # A sort of numbers that contain the row and the place takes a third of the time of a stable argsort.
    keys = (row.astype(np.int64) << 32) + np.arange(len(row))
    keys.sort()
    row = (keys >> 32).astype(np.int32)
    first = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]]))
    return row[first], np.add.reduceat(share[keys & 0xFFFF_FFFF], first)


def scan(terms: Terms, rows: Int[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """The sums of the given rows, which are in ascending order."""
    if not len(terms) or not len(rows):
        return np.zeros(len(rows), dtype=np.float32)
    marked = np.zeros(_MARKS, dtype=bool)
    marked[rows % _MARKS] = True
    sums = np.zeros(len(rows), dtype=np.float32)
    for part, (starts, ends) in zip(terms.parts, terms.slices, strict=True):
        pieces = [slice(*each) for each in zip(starts.tolist(), ends.tolist(), strict=True)]
        containing = np.concatenate([part.rows[piece] for piece in pieces])
        posting = np.flatnonzero(marked[containing.astype(np.uint16)])  # also postings of other rows with equal marks
        place = np.minimum(rows.searchsorted(containing[posting]), len(rows) - 1)
        found = rows[place] == containing[posting]
        posting = posting[found]
        shares = np.concatenate([part.weights[piece] for piece in pieces])[posting]
        shares = shares * terms.weights.repeat(ends - starts)[posting]
        sums += np.bincount(place[found], weights=shares, minlength=len(rows)).astype(np.float32)
    return sums


def search(terms: Terms, rows: Int[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """The sums of the given rows, which are in ascending order."""
    sums = np.zeros(len(rows), dtype=np.float32)
    for part, (starts, ends) in zip(terms.parts, terms.slices, strict=True):
        present = starts < ends
        if not present.any():
            continue
        starts, ends, weights = starts[present], ends[present], terms.weights[present]
        pieces = zip(starts.tolist(), ends.tolist(), strict=True)
        place = np.stack([part.rows[start:end].searchsorted(rows) for start, end in pieces])
        posting = np.minimum(place + starts[:, None], ends[:, None] - 1)
        term, row = np.nonzero(part.rows[posting] == rows)
        shares = part.weights[posting[term, row]] * weights[term]
        sums += np.bincount(row, weights=shares, minlength=len(rows)).astype(np.float32)
    return sums


def is_frequent(counts: Int[np.ndarray, " term"], texts: int) -> Bool[np.ndarray, " term"]:
    """Whether each term is frequent, from the number of texts that contain it and the number of all texts."""
    return np.asarray(counts > _FREQUENT * texts)


class FrequentTerms:
    """A table of the weights of the most frequent terms in all texts.

    Args:
        postings: Postings of the texts.
        rows: Number of texts.
    """

    def __init__(self, postings: Postings, rows: int) -> None:
        counts = np.diff(postings.offsets)
        terms = np.flatnonzero(is_frequent(counts, rows))
        most = _MOST_ITEMS // max(rows, 1)
        terms = np.sort(terms[np.argsort(-counts[terms], kind="stable")[:most]])
        self._starts, ends = postings.offsets[terms], postings.offsets[terms + 1]
        self._weights: Float16[np.ndarray, "row term"] = np.zeros((rows, len(terms)), dtype=np.float16)
        for column, (start, end) in enumerate(zip(self._starts.tolist(), ends.tolist(), strict=True)):
            self._weights[postings.rows[start:end], column] = postings.weights[start:end]

    def find(self, terms: Terms) -> Bool[np.ndarray, " term"]:
        """Whether each term is in the table."""
        if not len(self._starts):
            return np.zeros(len(terms), dtype=bool)
        starts, ends = terms.slices[0]
        return np.asarray((starts < ends) & (self._starts[self._columns(starts)] == starts))

    def sum(self, terms: Terms, rows: Int[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
        """The sums of the given rows, which are in ascending order, for terms that are in the table."""
        sums = search(Terms(terms.parts[1:], terms.slices[1:], terms.weights), rows)
        known = int(rows.searchsorted(len(self._weights)))
        weights = self._weights[rows[:known, None], self._columns(terms.slices[0, 0])]
        sums[:known] += weights.astype(np.float32) @ terms.weights
        return sums

    def _columns(self, starts: Int[np.ndarray, " term"]) -> Int[np.ndarray, " term"]:
        return np.minimum(self._starts.searchsorted(starts), len(self._starts) - 1)
