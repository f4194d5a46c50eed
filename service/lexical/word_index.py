"""A word index: finds the texts that share rare words and word pairs with a query, among texts of one kind.

The similarity of a query and a text is a cosine of term weights, from 0 to 1 (SMART's lnc.ltc):

    query weight  (1 + ln frequency) ln(1 + N / n),  scaled to length 1; N texts, of which n contain the term
    text weight   (1 + ln frequency),                scaled to length 1

Texts are added and removed while searches run. `N` and `n` count the texts that are present, and the weights of a text
depend on this text alone. The answers therefore equal those of a new index of the same texts.

The cost of a search has a bound: the rarest terms choose the candidates, up to `_BUDGET` postings. The other terms only
add to the similarities of the best candidates.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt64

from service.lexical.postings import Postings, invert, join
from service.lexical.terms import count_terms, text_terms

# Number of postings that choose candidates, and number of candidates for each text to find that the other terms score.
_BUDGET, _CANDIDATES = 16_384, 5


class QueryTerms(NamedTuple):
    """The terms of a query and their frequencies in it."""

    terms: UInt64[np.ndarray, " term"]
    frequencies: Int[np.ndarray, " term"]

    @classmethod
    def of(cls, query: str) -> QueryTerms:
        _, terms, frequencies = count_terms(*text_terms([query]))
        return cls(terms, frequencies)


@dataclass(frozen=True)
class _State:
    """Everything that a search reads. A write replaces the state, so that searches need no lock.

    Attributes:
        parts: The mapped postings, then the postings of texts that were added, in order of their rows.
        removed: Postings of the texts that were removed.
        removed_rows: Their rows, in ascending order.
        rows: Number of rows, with the removed ones.
    """

    parts: tuple[Postings, ...]
    removed: Postings
    removed_rows: Int[np.ndarray, " removed"]
    rows: int


class WordIndex:
    """The word index of one kind of texts; thread-safe.

    Args:
        postings: Postings of the first `rows` texts.
        rows: Number of texts.
    """

    def __init__(self, postings: Postings, rows: int) -> None:
        self._state = _State((postings,), invert([]), np.empty(0, dtype=np.int32), rows)
        self._write = threading.Lock()

    def __len__(self) -> int:
        """Number of rows, with those of removed texts."""
        return self._state.rows

    def search(self, query: QueryTerms, top: int) -> tuple[Float[np.ndarray, " found"], Int[np.ndarray, " found"]]:
        """The similarities and rows of the most similar texts: at most `top`, in order of falling similarity, then row.

        Only texts with a positive similarity are found.
        """
        state = self._state
        slices = np.stack([part.find(query.terms) for part in state.parts])  # [part, start and end, term]
        counts = (slices[:, 1] - slices[:, 0]).sum(axis=0)
        weights = self._query_weights(state, query, counts)
        by_rarity = np.argsort(counts, kind="stable")
        by_rarity = by_rarity[counts[by_rarity] > 0]
        if not len(by_rarity):
            return np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)
        chosen = max(1, int(np.searchsorted(np.cumsum(counts[by_rarity]), _BUDGET, side="right")))
        rows, similarities = _sum(state.parts, slices, weights, by_rarity[:chosen])
        if len(state.removed_rows):
            present = ~_contains(state.removed_rows, rows)
            rows, similarities = rows[present], similarities[present]
        if chosen < len(by_rarity):
            rows, similarities = _best(rows, similarities, top * _CANDIDATES)
            order = np.argsort(rows)
            rows, similarities = rows[order], similarities[order]
            for term in by_rarity[chosen:]:
                _add(state.parts, slices[:, :, term], weights[term], rows, similarities)
        rows, similarities = _best(rows, similarities, top)
        order = np.lexsort((rows, -similarities))
        return similarities[order], rows[order].astype(np.int64)

    def add(self, texts: Sequence[str]) -> int:
        """Add texts; searches that begin later find them.

        Returns:
            The row of the first text; the others follow it.
        """
        with self._write:
            state = self._state
            parts = [*state.parts, invert(texts, state.rows)]
            # Parts that were added double in size from last to first, so that there are few.
            while len(parts) > 2 and len(parts[-2].rows) < 2 * len(parts[-1].rows):
                parts[-2:] = [join(*parts[-2:])]
            self._state = _State(tuple(parts), state.removed, state.removed_rows, state.rows + len(texts))
            return state.rows

    def remove(self, rows: Sequence[int], texts: Sequence[str]) -> None:
        """Remove texts; searches that begin later do not find them. A row that was removed already is skipped.

        Args:
            rows: Rows of the texts.
            texts: The texts of these rows, as they were added.
        """
        with self._write:
            state = self._state
            gone = dict.fromkeys(state.removed_rows.tolist())
            new = {row: text for row, text in zip(rows, texts, strict=True) if row not in gone}
            if new and not 0 <= min(new) <= max(new) < state.rows:
                raise ValueError(f"expected rows from 0 to {state.rows - 1:,}, found {min(new)} to {max(new)}")
            removed = join(state.removed, invert(new.values(), len(gone)))
            removed_rows = np.sort(np.array([*gone, *new], dtype=np.int32))
            self._state = _State(state.parts, removed, removed_rows, state.rows)

    @staticmethod
    def _query_weights(
        state: _State, query: QueryTerms, counts: Int[np.ndarray, " term"]
    ) -> Float[np.ndarray, " term"]:
        if len(state.removed_rows):
            first, last = state.removed.find(query.terms)
            counts = counts - (last - first)
        present = state.rows - len(state.removed_rows)
        weights = (1 + np.log(query.frequencies)) * np.log1p(present / np.maximum(counts, 1))
        return (weights / max(np.sqrt(weights @ weights), np.finfo(float).tiny)).astype(np.float32)


def _sum(
    parts: Sequence[Postings],
    slices: Int[np.ndarray, "part 2 term"],
    weights: Float[np.ndarray, " term"],
    chosen: Int[np.ndarray, " chosen"],
) -> tuple[Int[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Sum the contributions of the chosen terms for each row that contains one: rows in ascending order, and sums."""
    rows, shares = [], []
    for part, (starts, ends) in zip(parts, slices[:, :, chosen].tolist(), strict=True):
        for start, end, weight in zip(starts, ends, weights[chosen].tolist(), strict=True):
            if start < end:
                rows.append(part.rows[start:end])
                shares.append(part.weights[start:end] * np.float32(weight))
    row, share = np.concatenate(rows), np.concatenate(shares)
    order = np.argsort(row, kind="stable")
    row, share = row[order], share[order]
    first = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]]))
    return row[first], np.add.reduceat(share, first)


def _add(
    parts: Sequence[Postings],
    slices: Int[np.ndarray, "part 2"],
    weight: float,
    rows: Int[np.ndarray, " row"],
    similarities: Float[np.ndarray, " row"],
) -> None:
    """Add the contributions of one term to the similarities of the given rows, which are in ascending order."""
    for part, (start, end) in zip(parts, slices.tolist(), strict=True):
        if start == end:
            continue
        containing = part.rows[start:end]
        place = np.minimum(np.searchsorted(containing, rows), end - start - 1)
        found = containing[place] == rows
        similarities[found] += part.weights[start:end][place[found]] * weight


def _contains(ascending: Int[np.ndarray, " member"], rows: Int[np.ndarray, " row"]) -> np.ndarray:
    place = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)
    return np.asarray(ascending[place] == rows)


def _best(
    rows: Int[np.ndarray, " row"], similarities: Float[np.ndarray, " row"], most: int
) -> tuple[Int[np.ndarray, " best"], Float[np.ndarray, " best"]]:
    """At most `most` rows with the highest similarities, in no particular order. Of equal ones, lower rows are kept."""
    if len(rows) <= most:
        return rows, similarities
    least = np.partition(similarities, len(rows) - most)[len(rows) - most]
    kept = similarities > least
    equal = np.flatnonzero(similarities == least)
    kept[equal[: most - np.count_nonzero(kept)]] = True
    return rows[kept], similarities[kept]
