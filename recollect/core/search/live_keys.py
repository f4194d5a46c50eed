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
    """Searches the keys of one kind; with `row_of` None, a key is its row."""

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
        is_live, compared = row >= 0, np.empty(len(keys), dtype=np.float32)
        compared[~is_live] = self._bundle_keys.similarities(vector, keys[~is_live])
        compared[is_live] = np.einsum("kd,d->k", self._rows.vectors[row[is_live]], vector)
        return compared

    def _search_live(
        self, vectors: Float[np.ndarray, "query dim"], minimum: Float[np.ndarray, " query"], top_b: int
    ) -> Neighbours:
        """The live keys whose similarity to a query is at least its `minimum`; at most `top_b`."""
        live, removed, nearest = self._rows, self._rows.removed[self._rows.bundle_rows :], []
        for vector, bound in zip(vectors, minimum.tolist(), strict=True):
            rows = live.codes.near(vector, bound, removed)
            similarities = np.einsum("kd,d->k", live.vectors[rows], vector)
            best = np.argsort(-similarities, kind="stable")[:top_b]
            nearest.append((similarities[best], live.numbers[rows[best]]))
        return Neighbours.of(nearest, max(len(keys) for _, keys in nearest))


def _search_present(
    index: Keys, removed: Bool[np.ndarray, " key"], removals: int, vectors: Float[np.ndarray, "query dim"], top_b: int
) -> Neighbours:
    """The top-b keys that are present, of an index whose searches also find removed keys."""
    keys = len(removed)
    top_b = min(top_b, keys - removals)
    if not top_b:
        return Neighbours.missing(len(vectors), 0)
    if not removals:
        return index.search(vectors, top_b)
    nearest = Neighbours.missing(len(vectors), top_b)
    lacking, wanted = np.arange(len(vectors)), math.ceil(top_b * keys / (keys - removals)) + _SPARE_KEYS
    while len(lacking):
        wanted = min(wanted, keys, top_b + removals)
        raw = index.search(vectors[lacking], wanted)
        present = (raw.keys >= 0) & ~removed[np.maximum(raw.keys, 0)]
        place = np.cumsum(present, axis=1) - 1
        query, slot = np.nonzero(present & (place < top_b))
        target = lacking[query], place[query, slot]
        nearest.similarities[target], nearest.keys[target] = raw.similarities[query, slot], raw.keys[query, slot]
        if wanted == min(keys, top_b + removals):
            break
        lacking = lacking[present.sum(axis=1) < top_b]
        wanted *= _GROWTH
    return nearest
