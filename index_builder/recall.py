"""Measure an index: its recall, the share of keys that a search can reach, and its search time on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from recollect.core.neighbours import Neighbours
from recollect.core.search.searcher import unwrapped
from recollect.index_builder.faiss_index import Keys
from recollect.trainer.memory.search import nearest_among

# Rounding error of an inner product in float32: of unit vectors, and relative to greater products.
_ROUNDING = 1e-5
# Minimum share of a graph's keys that a search must be able to reach.
MIN_REACHABLE = 0.999
# Number of keys whose links are read at once when the reachable keys are counted.
_FOLLOWED_KEYS = 65_536


def exact_neighbours(
    keys: Keys, queries: Float[np.ndarray, "query dim"], top_b: int, rows: Int[np.ndarray, " row"] | None = None
) -> Neighbours:
    """Find the top-b keys of each query by exact search; with `rows`, among the keys in these rows."""
    return Neighbours(*nearest_among(queries, keys, rows, top_b))


def recall(
    found: Int[np.ndarray, "query top_b"], keys: Keys, queries: Float[np.ndarray, "query dim"], exact: Neighbours
) -> float:
    """The share of the exact top-b keys that a search found, over all queries. -1 pads short lists.

    A found key counts if it is at least as similar to the query as the b-th exact key. So a key with equal similarity
    counts too.
    """
    last = exact.similarities[:, -1:]
    rows, places = np.unique(np.maximum(found, 0), return_inverse=True)
    similarities = np.einsum("qd,qbd->qb", queries, keys[rows][places.reshape(found.shape)], dtype=np.float32)
    minimum = last - _ROUNDING * np.maximum(1, np.abs(last))
    return float(((similarities >= minimum) & (found >= 0)).mean())


def search_milliseconds(
    search: Callable[[Float[np.ndarray, "1 dim"]], object], queries: Float[np.ndarray, "query dim"], seconds: float
) -> Float[np.ndarray, " query"]:
    """Measure the search time of each query, one after the other on one thread, for at most so many seconds."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        search(queries[:1])
        spent: list[float] = []
        for query in queries:
            start = time.perf_counter()
            search(query[None])
            spent.append(time.perf_counter() - start)
            if sum(spent) > seconds:
                break
    finally:
        faiss.omp_set_num_threads(threads)
    return 1e3 * np.array(spent)


def reachable_share(index: Any) -> float:
    """The share of a graph's keys that a search can reach from the entry point over links of the lowest level.

    A graph that was linked on a GPU has no fixed entry point; the first key takes its place. For an index without a
    graph, the share is 1.
    """
    graph = unwrapped(index)
    if not isinstance(graph, faiss.IndexHNSW):
        return 1.0
    hnsw = graph.hnsw
    offsets, links = faiss.vector_to_array(hnsw.offsets).astype(np.int64), hnsw.nb_neighbors(0)
    neighbours = faiss.rev_swig_ptr(hnsw.neighbors.data(), hnsw.neighbors.size())
    seen = np.zeros(graph.ntotal, dtype=bool)
    entry_point = max(hnsw.entry_point, 0)
    seen[entry_point] = True
    frontier = [np.array([entry_point])]
    while frontier:
        reached = []
        for keys in frontier:
            linked = neighbours[offsets[keys][:, None] + np.arange(links)]
            fresh = np.unique(linked[(linked >= 0) & ~seen[linked]])
            seen[fresh] = True
            reached += [fresh[start : start + _FOLLOWED_KEYS] for start in range(0, len(fresh), _FOLLOWED_KEYS)]
        frontier = reached
    return float(seen.mean())
