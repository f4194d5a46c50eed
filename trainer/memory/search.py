"""Nearest keys by inner product: exact search, and approximate search with inverted lists."""

from __future__ import annotations

import math

import faiss
import numpy as np
import torch
from jaxtyping import Float, Int

# Limits of one block on a GPU: the number of queries, and the number of similarities of queries to keys.
_BLOCK_QUERIES, _BLOCK_SIMILARITIES = 4_096, 1 << 28
# Number of keys in one chunk of `nearest_among`, which copies keys.
_CHUNK_KEYS = 65_536
# Inverted lists: 4 sqrt(keys) lists with at least 39 training keys each; a query searches 1 list in 16.
_LISTS_PER_SQRT_KEY, _TRAINING_KEYS_PER_LIST, _LISTS_PER_PROBE = 4, 39, 16


def nearest(
    queries: Float[np.ndarray, "query dim"], keys: Float[np.ndarray, "key dim"], top: int, device: str = "cpu"
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """Similarities and rows of the nearest keys of each query, best first, by exact search.

    Args:
        queries: Unit vectors.
        keys: Unit vectors.
        top: Number of keys to find; all keys if there are fewer.
        device: `cpu` searches with faiss, any other device with torch.
    """
    top = min(top, len(keys))
    if device != "cpu":
        return _nearest_on_gpu(queries, keys, top, device)
    similarities, rows = faiss.knn(_contiguous(queries), _contiguous(keys), top, metric=faiss.METRIC_INNER_PRODUCT)
    return similarities, rows


def nearest_among(
    queries: Float[np.ndarray, "query dim"],
    keys: Float[np.ndarray, "key dim"],
    rows: Int[np.ndarray, " row"],
    top: int,
    device: str = "cpu",
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """Search like `nearest`, but only the keys in `rows`. The function copies one chunk of keys at a time."""
    similarities: np.ndarray = np.empty((len(queries), 0), np.float32)
    found: np.ndarray = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(rows), _CHUNK_KEYS):
        chunk = rows[start : start + _CHUNK_KEYS]
        near, places = nearest(queries, keys[chunk], top, device)
        similarities = np.concatenate([similarities, near], axis=1)
        found = np.concatenate([found, chunk[places]], axis=1)
        best = np.argsort(-similarities, axis=1, kind="stable")[:, :top]
        similarities, found = (np.take_along_axis(part, best, axis=1) for part in (similarities, found))
    return similarities, found


def nearest_approximate(
    queries: Float[np.ndarray, "query dim"], keys: Float[np.ndarray, "key dim"], top: int
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """Search like `nearest`, but only a sixteenth of the inverted lists.

    If these lists hold fewer than `top` keys, the remaining rows are -1 and their similarities -inf.
    """
    lists = max(1, min(int(_LISTS_PER_SQRT_KEY * math.sqrt(len(keys))), len(keys) // _TRAINING_KEYS_PER_LIST))
    index = faiss.index_factory(keys.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(_contiguous(keys))
    index.add(_contiguous(keys))
    index.nprobe = -(-lists // _LISTS_PER_PROBE)
    similarities, rows = index.search(_contiguous(queries), min(top, len(keys)))
    return np.where(rows < 0, -np.inf, similarities), rows


def _nearest_on_gpu(queries: np.ndarray, keys: np.ndarray, top: int, device: str) -> tuple[np.ndarray, np.ndarray]:
    on_device = torch.from_numpy(_contiguous(keys)).to(device)
    block = max(1, min(_BLOCK_QUERIES, _BLOCK_SIMILARITIES // max(1, len(keys))))
    found = [
        (torch.from_numpy(_contiguous(queries[start : start + block])).to(device) @ on_device.T).topk(top)
        for start in range(0, max(1, len(queries)), block)
    ]
    return (
        torch.cat([block.values for block in found]).cpu().numpy(),
        torch.cat([block.indices for block in found]).cpu().numpy(),
    )


def _contiguous(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=np.float32)
