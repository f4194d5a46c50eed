"""Live keys: searches the keys of a bundle, without those that have ended, together with live keys.

The live keys are found exactly: all of them are compared with a query, except those whose 8-bit codes show that they
are farther away than the last key of the bundle.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import faiss
import numpy as np
from jaxtyping import Float, Int

from recollect.service.memory.live_table import Ends, LiveRows
from recollect.service.predictor.searcher import Keys, Neighbours, PartSearch, merge

# A search asks for this number of keys more than it needs, and for more in proportion to the keys that have ended.
_SPARE_KEYS = 16
# If a query still lacks keys, its search is repeated for this number of times as many.
_GROWTH = 4
# For more queries than this, one multiplication of matrices is faster than a search of codes for each query.
_FEW_QUERIES = 5


class LiveKeyIndex:
    """Searches the keys of one kind.

    Args:
        mapped: The index of the bundle.
        ends: The ends of its keys.
        live: The live keys; their numbers are the numbers of the keys.
        row: The rows of `live` of some keys; negative for keys of the bundle.
        keys: Number of keys, with those that have ended.
    """

    def __init__(
        self,
        mapped: Keys,
        ends: Ends,
        live: LiveRows,
        row: Callable[[Int[np.ndarray, " key"]], Int[np.ndarray, " key"]],
        keys: int,
    ) -> None:
        self._mapped, self._ends, self._live, self._row, self.keys = mapped, ends, live, row, keys

    @property
    def cpu_reason(self) -> str:
        return self._mapped.cpu_reason

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
        top_b = min(top_b, self.keys)
        mapped = search_present(self._mapped.search, self._mapped.keys, self._ends, vectors, top_b)
        if self._live.blocks and len(vectors) <= _FEW_QUERIES and mapped.keys.shape[1] == top_b:
            live = self._search_blocks(vectors, mapped.similarities[:, -1], top_b)
        else:
            live = search_present(self._search_live, self._live.count, self._live.ends, vectors, top_b)
        if not live.keys.shape[1]:
            return mapped
        numbered = Neighbours(live.similarities, np.where(live.keys < 0, -1, self._live.numbers[live.keys]))
        return merge(mapped, numbered, top_b)

    def similarities(
        self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
    ) -> Float[np.ndarray, " key"]:
        """The similarities of a query to the given keys, which are present; the keys must be in rising order."""
        row = self._row(keys)
        is_live, found = row >= 0, np.empty(len(keys), dtype=np.float32)
        found[~is_live] = self._mapped.similarities(vector, keys[~is_live])
        found[is_live] = np.einsum("kd,d->k", self._live.vectors[row[is_live]], vector)
        return found

    def _search_blocks(
        self, vectors: Float[np.ndarray, "query dim"], least: Float[np.ndarray, " query"], top_b: int
    ) -> Neighbours:
        """The live keys whose similarity to a query is at least its least one, at most `top_b`."""
        live, found, sealed = self._live, [], self._live.blocks[-1].end
        rest = np.arange(sealed, live.count)
        for vector, bound in zip(vectors, least.tolist(), strict=True):
            near = np.concatenate([block.near(vector, bound) for block in live.blocks])
            compared = (np.einsum("kd,d->k", part, vector) for part in (live.vectors[near], live.vectors[sealed:]))
            similarities, rows = np.concatenate([*compared]), np.concatenate([near, rest])
            kept = np.flatnonzero(live.ends.present(rows) & (similarities >= bound))
            kept = kept[np.argsort(-similarities[kept], kind="stable")[:top_b]]
            found.append((similarities[kept], rows[kept]))
        width = max(len(rows) for _, rows in found)
        keys = np.full((len(vectors), width), -1, dtype=np.int64)
        similarities = np.full((len(vectors), width), -np.inf, dtype=np.float32)
        for query, (values, rows) in enumerate(found):
            similarities[query, : len(rows)], keys[query, : len(rows)] = values, rows
        return Neighbours(similarities, keys)

    def _search_live(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
        return Neighbours(*faiss.knn(vectors, self._live.vectors, top_b, faiss.METRIC_INNER_PRODUCT))


def search_present(
    search: PartSearch, keys: int, ends: Ends, vectors: Float[np.ndarray, "query dim"], top_b: int
) -> Neighbours:
    """The top-b keys that are present, of an index whose searches also find keys that have ended.

    Args:
        search: Searches the index.
        keys: Number of keys of the index.
        ends: The ends of its keys.
        vectors: The queries.
        top_b: Number of keys to find.
    """
    top_b = min(top_b, keys - ends.ended)
    if not top_b:
        return Neighbours(np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64))
    if not ends.ended:
        return search(vectors, top_b)
    found = Neighbours(np.full((len(vectors), top_b), -np.inf, np.float32), np.full((len(vectors), top_b), -1))
    lacking, wanted = np.arange(len(vectors)), math.ceil(top_b * keys / (keys - ends.ended)) + _SPARE_KEYS
    while len(lacking):
        wanted = min(wanted, keys, top_b + ends.ended)
        raw = search(vectors[lacking], wanted)
        present = (raw.keys >= 0) & ends.present(np.maximum(raw.keys, 0))
        place = np.cumsum(present, axis=1) - 1
        query, slot = np.nonzero(present & (place < top_b))
        target = lacking[query], place[query, slot]
        found.similarities[target], found.keys[target] = raw.similarities[query, slot], raw.keys[query, slot]
        if wanted == min(keys, top_b + ends.ended):
            break
        lacking = lacking[present.sum(axis=1) < top_b]
        wanted *= _GROWTH
    return found
