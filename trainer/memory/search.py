"""Nearest keys by inner product: exact search, and approximate search with inverted lists."""

from __future__ import annotations

import math
from collections.abc import Iterator

import faiss
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.core.neighbours import Neighbours, merge
from recollect.trainer.distributed import Ranks
from recollect.trainer.memory.label_keys import LabelKeys

# Limits of one block on a GPU: the number of queries, and the number of similarities of queries to keys.
_BLOCK_QUERIES, _BLOCK_SIMILARITIES = 4_096, 1 << 28
# Number of key elements on a GPU at once: 4 GiB.
_GPU_NUMBERS = 1 << 30
# Number of keys in one block of `blocks`.
_BLOCK_KEYS = 65_536
# Inverted lists: 4 sqrt(keys) lists with at least 39 training keys each; a query searches 1 list in 16.
_LISTS_PER_SQRT_KEY, _TRAINING_KEYS_PER_LIST, _LISTS_PER_PROBE = 4, 39, 16


def nearest(
    queries: Float[np.ndarray, "query dim"], keys: Float[np.ndarray, "key dim"], top: int, device: str = "cpu"
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """Similarities and rows of the nearest keys of each query, best first, by exact search.

    Args:
        top: Number of keys to find; all keys if there are fewer.
        device: `cpu` searches with faiss, any other device with torch.
    """
    top = min(top, len(keys))
    if top == 0:
        return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    if device != "cpu":
        return _nearest_on_gpu(queries, keys, top, device)
    similarities, rows = faiss.knn(_contiguous(queries), _contiguous(keys), top, metric=faiss.METRIC_INNER_PRODUCT)
    return similarities, rows


def nearest_among(
    queries: Float[np.ndarray, "query dim"],
    keys: Float[np.ndarray, "key dim"] | LabelKeys,
    rows: Int[np.ndarray, " row"] | None,
    top: int,
    device: str = "cpu",
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """Search like `nearest`, one block of keys at a time, and only the keys in `rows`; None: all."""
    nothing = np.empty((len(queries), 0))
    best = Neighbours(nothing.astype(np.float32), nothing.astype(np.int64))
    for block_rows, block in blocks(keys, rows):
        similarities, places = nearest(queries, block, top, device)
        count = min(top, best.keys.shape[1] + len(block))
        best = merge(best, Neighbours(similarities, block_rows[places]), count)
    return best.similarities, best.keys


def blocks(
    keys: Float[np.ndarray, "key dim"] | LabelKeys, rows: Int[np.ndarray, " row"] | None = None
) -> Iterator[tuple[Int[np.ndarray, " block"], Float[np.ndarray, "block dim"]]]:
    """Yield the rows of each block of keys, and the keys in float32: of some rows in rising order, or of all."""
    rows = np.arange(len(keys)) if rows is None else rows
    for start in range(0, len(rows), _BLOCK_KEYS):
        block = rows[start : start + _BLOCK_KEYS]
        # A slice of a mapped file is read without a copy.
        is_slice = block[-1] - block[0] == len(block) - 1
        yield block, _contiguous(keys[block[0] : block[-1] + 1] if is_slice else keys[block])


def merge_nearest(
    similarities: Float[np.ndarray, "query found"],
    rows: Int[np.ndarray, "query found"],
    top: int,
    ranks: Ranks,
    device: str = "cpu",
) -> tuple[Float[np.ndarray, "query top"], Int[np.ndarray, "query top"]]:
    """Merge the nearest keys of each query that the ranks found among their own keys, on every rank.

    Args:
        similarities: This rank's best similarities, at most `top` for each query.
        rows: Rows of the keys, in the numbers that all ranks share. The keys of lower ranks have lower rows.
        top: Number of keys to return. If all ranks found fewer, the remaining rows are 0 with similarity -inf.
    """
    queries, found = similarities.shape
    padded = np.full((queries, top), -np.inf, np.float32), np.zeros((queries, top), np.int64)
    padded[0][:, :found], padded[1][:, :found] = similarities, rows
    merged = [
        ranks.all_gather_arrays(part, queries * ranks.size, device)
        .reshape(ranks.size, queries, top)
        .swapaxes(0, 1)
        .reshape(queries, ranks.size * top)
        for part in padded
    ]
    best = np.argsort(-merged[0], axis=1, kind="stable")[:, :top]
    return np.take_along_axis(merged[0], best, axis=1), np.take_along_axis(merged[1], best, axis=1)


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
    """Search chunk by chunk of keys. Each key is copied to the GPU once."""
    found: list[tuple[Tensor, Tensor]] = []
    step = max(1, _GPU_NUMBERS // keys.shape[1])
    for first in range(0, len(keys), step):
        on_device = torch.from_numpy(_contiguous(keys[first : first + step])).to(device)
        block = max(1, min(_BLOCK_QUERIES, _BLOCK_SIMILARITIES // len(on_device)))
        blocks = [
            (torch.from_numpy(_contiguous(queries[start : start + block])).to(device) @ on_device.T).topk(
                min(top, len(on_device))
            )
            for start in range(0, max(1, len(queries)), block)
        ]
        found.append(
            (torch.cat([each.values for each in blocks]), torch.cat([each.indices for each in blocks]) + first)
        )
        if len(found) > 1:
            similarities, rows = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
            best = similarities.topk(min(top, similarities.shape[1]))
            found = [(best.values, rows.gather(1, best.indices))]
    ((similarities, rows),) = found
    return similarities.cpu().numpy(), rows.cpu().numpy()


def _contiguous(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=np.float32)
