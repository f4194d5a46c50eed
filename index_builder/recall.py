"""How good and how fast an index is: recall against exact search, milliseconds a query on one thread."""

from __future__ import annotations

import time

import faiss
import numpy as np
from jaxtyping import Float

from index_builder.faiss_index import Keys, blocks
from service.searcher import KeyIndex, Neighbours, merge

# What float32 may lose of an inner product of unit vectors.
_ROUNDING = 1e-5


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
    index: KeyIndex,
    keys: Keys,
    queries: Float[np.ndarray, "query dim"],
    exact: Neighbours,
) -> float:
    """Share of the exact top-b keys that the index finds, over all queries.

    Args:
        index: What is measured.
        keys: All its keys.
        queries: What to look for.
        exact: What `exact_neighbours` says of them. A found key counts if it is as similar as the b-th best: among
            equal keys, one is as good as the other.
    """
    found, bars = index.search(queries, exact.keys.shape[1]).keys, exact.similarities[:, -1:]
    rows, places = np.unique(np.maximum(found, 0), return_inverse=True)
    similarities = np.einsum("qd,qbd->qb", queries, keys[rows][places.reshape(found.shape)], dtype=np.float32)
    return float(((similarities >= bars - _ROUNDING) & (found >= 0)).mean())


def milliseconds(
    index: KeyIndex, queries: Float[np.ndarray, "query dim"], top_b: int, most_seconds: float
) -> Float[np.ndarray, " query"]:
    """Time of each query, asked alone, on one thread; of the first ones only where all would take too long."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        index.search(queries[:1], top_b)
        spent: list[float] = []
        for query in queries:
            start = time.perf_counter()
            index.search(query[None], top_b)
            spent.append(time.perf_counter() - start)
            if sum(spent) > most_seconds:
                break
    finally:
        faiss.omp_set_num_threads(threads)
    return 1e3 * np.array(spent)
