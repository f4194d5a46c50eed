"""The similarity of a query to chosen keys of an index, equal to the similarity that a search of the index reports.

The similarity is computed from the codes that the index stores. Codes of some kinds cannot be decoded to the vector
that a search compares; for these codes, an exhaustive search runs over the chosen keys only.
"""

from __future__ import annotations

import threading
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

# Number of keys that are decoded at the same time; this limits the memory.
_BLOCK_KEYS = 16_384

# Indexes whose codes decode to exactly the vector that a search compares. Fast-scan and RaBitQ codes do not.
_DECODED = (faiss.IndexFlat, faiss.IndexScalarQuantizer, faiss.IndexPQ)
_DECODED_LISTS = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ)

# Lock for building an index's map from keys to inverted lists, which happens once, at the first use.
_direct_map_lock = threading.Lock()


def similarities_to_keys(
    index: Any, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
) -> Float[np.ndarray, " key"]:
    """The inner products of a query with some keys of an index, as exact as the codes that the index stores.

    Args:
        index: Any faiss index, with its transforms and refinements.
        keys: Rows of the index, in rising order without duplicates.
    """
    if not len(keys):
        return np.empty(0, dtype=np.float32)
    match index := faiss.downcast_index(index):
        case faiss.IndexPreTransform():
            for nth in range(index.chain.size()):
                vector = faiss.downcast_VectorTransform(index.chain.at(nth)).apply(vector[None])[0]
            return similarities_to_keys(index.index, vector, keys)
        case faiss.IndexRefine():
            return similarities_to_keys(index.refine_index, vector, keys)
        case faiss.IndexHNSW():
            return similarities_to_keys(index.storage, vector, keys)
    if isinstance(index, _DECODED_LISTS):
        with _direct_map_lock:
            index.make_direct_map()
        return _compare_decoded(index, vector, keys)
    if isinstance(index, _DECODED):
        return _compare_decoded(index, vector, keys)
    return _compare_by_search(index, vector, keys)


def _compare_decoded(
    index: Any, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
) -> Float[np.ndarray, " key"]:
    similarities = np.empty(len(keys), dtype=np.float32)
    for start in range(0, len(keys), _BLOCK_KEYS):
        block = index.reconstruct_batch(keys[start : start + _BLOCK_KEYS])
        # `@` would start numpy's own threads, and its rounding can depend on their number
        np.einsum("kd,d->k", block, vector, out=similarities[start : start + len(block)])
    return similarities


def _compare_by_search(
    index: Any, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
) -> Float[np.ndarray, " key"]:
    """The similarities that an exhaustive search reports; -inf for a key that the search does not return."""
    chosen = np.zeros(index.ntotal, dtype=bool)
    chosen[keys] = True
    selector = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
    all_lists = {"nprobe": index.nlist} if isinstance(index, faiss.IndexIVF) else {}
    parameters = faiss.SearchParametersIVF if all_lists else faiss.SearchParameters
    try:
        values, rows = index.search(vector[None], len(keys), params=parameters(sel=selector, **all_lists))
    except RuntimeError:  # this index cannot restrict a search to chosen keys
        values, rows = index.search(vector[None], index.ntotal, params=parameters(**all_lists) if all_lists else None)
    found = np.full(index.ntotal, -np.inf, dtype=np.float32)
    found[rows[rows >= 0]] = values[rows >= 0]
    similarities: np.ndarray = found[keys]
    return similarities
