"""How good and how fast an index is: recall against exact search, keys within reach, milliseconds on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from index_builder.faiss_index import Keys, blocks
from service.predictor.searcher import Neighbours, merge, unwrapped

# What float32 may lose of an inner product of unit vectors.
_ROUNDING = 1e-5
# Share of a graph's keys that a walk must be able to come to, and keys whose links are followed at a time.
REACHABLE, _FOLLOWED_KEYS = 0.999, 65_536


def exact_neighbours(keys: Keys, queries: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
    """Each query's top b of all keys, by brute force, block by block."""
    top_b = min(top_b, len(keys))
    nothing = np.empty((len(queries), 0))
    best = Neighbours(nothing.astype(np.float32), nothing.astype(np.int64))
    for start, block in blocks(keys):
        similarities, rows = faiss.knn(queries, block, min(top_b, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        best = merge(best, Neighbours(similarities, rows + start), top_b)
    return best


def recall(
    found: Int[np.ndarray, "query top_b"],
    keys: Keys,
    queries: Float[np.ndarray, "query dim"],
    exact: Neighbours,
) -> float:
    """Share of the exact top-b keys that were found, over all queries.

    Args:
        found: The keys that a search came back with, -1 where there were fewer.
        keys: All keys.
        queries: What was looked for.
        exact: What `exact_neighbours` says of them. A found key counts if it is as similar as the b-th best: among
            equal keys, one is as good as the other.
    """
    bars = exact.similarities[:, -1:]
    rows, places = np.unique(np.maximum(found, 0), return_inverse=True)
    similarities = np.einsum("qd,qbd->qb", queries, keys[rows][places.reshape(found.shape)], dtype=np.float32)
    return float(((similarities >= bars - _ROUNDING) & (found >= 0)).mean())


def milliseconds(
    search: Callable[[Float[np.ndarray, "1 dim"]], object], queries: Float[np.ndarray, "query dim"], most_seconds: float
) -> Float[np.ndarray, " query"]:
    """Time of each query, asked alone, on one thread; of the first ones only where all would take too long."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        search(queries[:1])
        spent: list[float] = []
        for query in queries:
            start = time.perf_counter()
            search(query[None])
            spent.append(time.perf_counter() - start)
            if sum(spent) > most_seconds:
                break
    finally:
        faiss.omp_set_num_threads(threads)
    return 1e3 * np.array(spent)


def reachable(index: Any) -> float:
    """Share of the keys that a walk over a graph's lowest level can come to from its entry; 1 for other indexes."""
    graph = unwrapped(index)
    if not isinstance(graph, faiss.IndexHNSW):
        return 1.0
    hnsw = graph.hnsw
    offsets, links = faiss.vector_to_array(hnsw.offsets).astype(np.int64), hnsw.nb_neighbors(0)
    neighbours = faiss.rev_swig_ptr(hnsw.neighbors.data(), hnsw.neighbors.size())
    seen = np.zeros(graph.ntotal, dtype=bool)
    seen[hnsw.entry_point] = True
    frontier = [np.array([hnsw.entry_point])]
    while frontier:
        reached = []
        for keys in frontier:
            linked = neighbours[offsets[keys][:, None] + np.arange(links)]
            fresh = np.unique(linked[(linked >= 0) & ~seen[linked]])
            seen[fresh] = True
            reached += [fresh[start : start + _FOLLOWED_KEYS] for start in range(0, len(fresh), _FOLLOWED_KEYS)]
        frontier = reached
    return float(seen.mean())
