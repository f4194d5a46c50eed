"""Comparison: the similarity of a query to keys that are chosen, not found, as a search of their index would tell it.

It is taken from the codes that the index stores. Some codes say what they stand for only to a search: that search is
then shown the chosen keys alone.
"""

from __future__ import annotations

import threading
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

# Keys that are decoded at a time: what bounds the memory of a comparison.
_BLOCK_KEYS = 16_384

# Codes of which each decodes to the very vector that a search compares; fast-scan and RaBitQ codes do not.
_DECODED = (faiss.IndexFlat, faiss.IndexScalarQuantizer, faiss.IndexPQ)
_DECODED_LISTS = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ)

# Held while an index learns where in its lists each key is: once, and only where somebody compares.
_mapping = threading.Lock()


def similarities(
    index: Any, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
) -> Float[np.ndarray, " key"]:
    """The inner product of a query with some of an index's keys, each as exact as the index holds it.

    Args:
        index: Any faiss index, its layers outside in.
        vector: The query.
        keys: Rows of the index, each once, rising.
    """
    if not len(keys):
        return np.empty(0, dtype=np.float32)
    match index := faiss.downcast_index(index):
        case faiss.IndexPreTransform():
            for nth in range(index.chain.size()):
                vector = faiss.downcast_VectorTransform(index.chain.at(nth)).apply(vector[None])[0]
            return similarities(index.index, vector, keys)
        case faiss.IndexRefine():
            return similarities(index.refine_index, vector, keys)
        case faiss.IndexHNSW():
            return similarities(index.storage, vector, keys)
    if isinstance(index, _DECODED_LISTS):
        with _mapping:
            index.make_direct_map()
        return _decoded(index, vector, keys)
    if isinstance(index, _DECODED):
        return _decoded(index, vector, keys)
    return _searched(index, vector, keys)


def _decoded(index: Any, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]) -> Float[np.ndarray, " key"]:
    found = np.empty(len(keys), dtype=np.float32)
    for start in range(0, len(keys), _BLOCK_KEYS):
        block = index.reconstruct_batch(keys[start : start + _BLOCK_KEYS])
        # not `@`, whose threads are numpy's own, and whose last digits may change with their number
        np.einsum("kd,d->k", block, vector, out=found[start : start + len(block)])
    return found


def _searched(
    index: Any, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
) -> Float[np.ndarray, " key"]:
    """What an exhaustive search says of the keys; -inf of one that it does not come to."""
    chosen = np.zeros(index.ntotal, dtype=bool)
    chosen[keys] = True
    selector = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
    every = {"nprobe": index.nlist} if isinstance(index, faiss.IndexIVF) else {}
    parameters = faiss.SearchParametersIVF if every else faiss.SearchParameters
    try:
        values, rows = index.search(vector[None], len(keys), params=parameters(sel=selector, **every))
    except RuntimeError:  # it cannot be kept from other keys
        values, rows = index.search(vector[None], index.ntotal, params=parameters(**every) if every else None)
    found = np.full(index.ntotal, -np.inf, dtype=np.float32)
    found[rows[rows >= 0]] = values[rows >= 0]
    chosen_alone: np.ndarray = found[keys]
    return chosen_alone
