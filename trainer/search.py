"""The nearest keys of each query by inner product: exact, or nearly so through inverted lists."""

from __future__ import annotations

import math

import faiss
import numpy as np
import torch
from jaxtyping import Float, Int

# What a GPU holds at once: queries, and similarities of theirs to all keys.
_BLOCK_QUERIES, _BLOCK_SIMILARITIES = 4_096, 1 << 28
# Keys that are copied at once where only some are searched.
_STRETCH_KEYS = 65_536
# Inverted lists: how many, how many keys each is trained on, and the share of them that a query looks into.
_LISTS_PER_SQRT_KEY, _TRAINING_KEYS_PER_LIST, _PROBED_SHARE = 4, 39, 16


def nearest(
    queries: Float[np.ndarray, "query dim"], keys: Float[np.ndarray, "key dim"], top: int, device: str = "cpu"
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """Similarities and rows of each query's nearest keys, best first, by brute force.

    Args:
        queries: Unit vectors.
        keys: Unit vectors.
        top: Keys to find, no more than there are.
        device: Where the products are computed: faiss on a CPU, torch on a GPU.
    """
    top = min(top, len(keys))
    if device != "cpu":
        return _nearest_on_gpu(queries, keys, top, device)
    similarities, rows = faiss.knn(_plain(queries), _plain(keys), top, metric=faiss.METRIC_INNER_PRODUCT)
    return similarities, rows


def nearest_among(
    queries: Float[np.ndarray, "query dim"],
    keys: Float[np.ndarray, "key dim"],
    rows: Int[np.ndarray, " row"],
    top: int,
    device: str = "cpu",
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """As `nearest`, among the keys of some rows, of which no more than a stretch is copied at once."""
    similarities: np.ndarray = np.empty((len(queries), 0), np.float32)
    found: np.ndarray = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(rows), _STRETCH_KEYS):
        stretch = rows[start : start + _STRETCH_KEYS]
        near, places = nearest(queries, keys[stretch], top, device)
        similarities = np.concatenate([similarities, near], axis=1)
        found = np.concatenate([found, stretch[places]], axis=1)
        best = np.argsort(-similarities, axis=1, kind="stable")[:, :top]
        similarities, found = (np.take_along_axis(part, best, axis=1) for part in (similarities, found))
    return similarities, found


def nearly_nearest(
    queries: Float[np.ndarray, "query dim"], keys: Float[np.ndarray, "key dim"], top: int
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """As `nearest`, looking into a sixteenth of the lists only; -1, at -inf, stands where too few keys were seen."""
    lists = max(1, min(int(_LISTS_PER_SQRT_KEY * math.sqrt(len(keys))), len(keys) // _TRAINING_KEYS_PER_LIST))
    index = faiss.index_factory(keys.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(_plain(keys))
    index.add(_plain(keys))
    index.nprobe = -(-lists // _PROBED_SHARE)
    similarities, rows = index.search(_plain(queries), min(top, len(keys)))
    return np.where(rows < 0, -np.inf, similarities), rows


def _nearest_on_gpu(queries: np.ndarray, keys: np.ndarray, top: int, device: str) -> tuple[np.ndarray, np.ndarray]:
    on_device = torch.from_numpy(_plain(keys)).to(device)
    block = max(1, min(_BLOCK_QUERIES, _BLOCK_SIMILARITIES // max(1, len(keys))))
    found = [
        (torch.from_numpy(_plain(queries[start : start + block])).to(device) @ on_device.T).topk(top)
        for start in range(0, max(1, len(queries)), block)
    ]
    return (
        torch.cat([block.values for block in found]).cpu().numpy(),
        torch.cat([block.indices for block in found]).cpu().numpy(),
    )


def _plain(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=np.float32)
