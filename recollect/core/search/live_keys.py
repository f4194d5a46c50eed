"""Live keys: searches the keys of a bundle, without removed ones, together with live keys.

The live keys are found exactly: all of them are compared with a query, except those whose 8-bit codes show that they
are farther away than the last key of the bundle.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core.neighbours import Neighbours, merge
from recollect.core.search.searcher import Keys
from recollect.core.tables.rows import Rows

# A search asks for this number of keys more than it needs, and for more in proportion to the removed keys.
_SPARE_KEYS = 16
# If a query still lacks keys, its search is repeated for this number of times as many.
_GROWTH = 4


class LiveKeyIndex:
    """Searches the keys of one kind.

    Args:
        row_of: The row of each key; None if a key is a row.
    """

    def __init__(self, bundle_keys: Keys, rows: Rows, row_of: Int[np.ndarray, " key"] | None = None) -> None:
        self._bundle_keys, self._rows, self._row_of = bundle_keys, rows, row_of
        self.keys = len(rows.removed) if row_of is None else len(row_of)

    @property
    def cpu_reason(self) -> str:
        return self._bundle_keys.cpu_reason

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
        rows, top_b = self._rows, min(top_b, self.keys)
        of_bundle = _search_present(
            self._bundle_keys, rows.removed[: rows.bundle_rows], rows.removed_bundle_rows, vectors, top_b
        )
        if not len(rows.vectors):
            return of_bundle
        minimum = of_bundle.similarities[:, -1] if of_bundle.keys.shape[1] == top_b else np.full(len(vectors), -np.inf)
        return merge(of_bundle, self._search_live(vectors, minimum, top_b), top_b)

    def similarities(
        self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
    ) -> Float[np.ndarray, " key"]:
        row = (keys if self._row_of is None else self._row_of[keys]) - self._rows.bundle_rows
        is_live, found = row >= 0, np.empty(len(keys), dtype=np.float32)
        found[~is_live] = self._bundle_keys.similarities(vector, keys[~is_live])
        found[is_live] = np.einsum("kd,d->k", self._rows.vectors[row[is_live]], vector)
        return found

    def _search_live(
        self, vectors: Float[np.ndarray, "query dim"], minimum: Float[np.ndarray, " query"], top_b: int
    ) -> Neighbours:
        """The live keys whose similarity to a query is at least its `minimum`; at most `top_b`."""
        live, removed, found = self._rows, self._rows.removed[self._rows.bundle_rows :], []
        for vector, bound in zip(vectors, minimum.tolist(), strict=True):
            rows = live.codes.near(vector, bound, removed)
            similarities = np.einsum("kd,d->k", live.vectors[rows], vector)
            best = np.argsort(-similarities, kind="stable")[:top_b]
            found.append((similarities[best], live.numbers[rows[best]]))
        return Neighbours.of(found, max(len(keys) for _, keys in found))


def _search_present(
    index: Keys, removed: Bool[np.ndarray, " key"], gone: int, vectors: Float[np.ndarray, "query dim"], top_b: int
) -> Neighbours:
    """The top-b keys that are present, of an index whose searches also find removed keys.

    Args:
        gone: Number of removed keys.
    """
    keys = len(removed)
    top_b = min(top_b, keys - gone)
    if not top_b:
        return Neighbours(np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64))
    if not gone:
        return index.search(vectors, top_b)
    found = Neighbours(np.full((len(vectors), top_b), -np.inf, np.float32), np.full((len(vectors), top_b), -1))
    lacking, wanted = np.arange(len(vectors)), math.ceil(top_b * keys / (keys - gone)) + _SPARE_KEYS
    while len(lacking):
        wanted = min(wanted, keys, top_b + gone)
        raw = index.search(vectors[lacking], wanted)
        present = (raw.keys >= 0) & ~removed[np.maximum(raw.keys, 0)]
        place = np.cumsum(present, axis=1) - 1
        query, slot = np.nonzero(present & (place < top_b))
        target = lacking[query], place[query, slot]
        found.similarities[target], found.keys[target] = raw.similarities[query, slot], raw.keys[query, slot]
        if wanted == min(keys, top_b + gone):
            break
        lacking = lacking[present.sum(axis=1) < top_b]
        wanted *= _GROWTH
    return found
