"""faiss indexes over unit keys with inner product: exact (flat), inverted lists (ivf) or a graph (hnsw)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from index_builder.errors import BuildError
from service.manifest import IndexInfo
from service.searcher import KeyIndex
from trainer.label_keys import LabelKeys

# Keys in rows: mapped, or mixed as they are read.
Keys = Float[np.ndarray, "key dim"] | LabelKeys

# Up to here exact search takes a few milliseconds on one core: nothing to gain from an approximation.
FLAT_KEYS = 50_000

# Keys that are read, checked and added at a time.
_BLOCK_KEYS = 65_536
# A key must have length 1 within what float16 storage loses.
_NORM_TOLERANCE = 5e-3

# What float32 may lose of an inner product of unit vectors.
_ROUNDING = 1e-5

# A graph half as dense as RAE-XMC's (64 links, 500) over keys in eight bits: 505,000 MiniLM keys take 140 s on two
# cores at a recall of 0.976, and change P@1 and R@100 by 0.1 and 0.4 points at most.
_HNSW_LINKS, _HNSW_CONSTRUCTION_EFFORT, _HNSW_SEARCH_EFFORT = 32, 100, 300
_IVF_TRAINING_KEYS_PER_LIST = 64
# Recall at which a search effort is left as it is, and how many times the first effort is worth a try.
_GOOD_RECALL, _MOST_EFFORT = 0.95, 8


def choose_kind(kind: str, keys: int) -> str:
    """`auto` is exact search for few keys and a graph for many."""
    if kind == "auto":
        return "flat" if keys <= FLAT_KEYS else "hnsw"
    return kind


def build_index(keys: Keys, kind: str, first_row: int, progress: Callable[[int], object]) -> tuple[Any, IndexInfo]:
    """Build an index over mapped keys, reading them block by block.

    Args:
        keys: Unit vectors, float32 or float16; usually a slice of a mapped memory.
        kind: `flat`, `ivf` or `hnsw`.
        first_row: The row of `keys[0]` in the memory, for messages.
        progress: Told after each block how many keys it held.

    Returns:
        The faiss index, and what the manifest says of it.

    Raises:
        BuildError: If a key is not a finite unit vector; names its row.
    """
    index, effort = _empty_index(kind, *keys.shape)
    if not index.is_trained:
        index.train(_training_sample(keys, index, first_row))
    for start, block in _blocks(keys):
        _check_units(block, first_row + start + np.arange(len(block)))
        index.add(block)
        progress(len(block))
    return index, IndexInfo(kind=kind, keys=index.ntotal, effort=effort)


def check_units(keys: Keys, first_row: int) -> None:
    """Refuse keys that are no unit vectors.

    Raises:
        BuildError: Naming the first one's row.
    """
    for start, block in _blocks(keys):
        _check_units(block, first_row + start + np.arange(len(block)))


def write_index(index: Any, path: Path) -> None:
    """Write an index; a full disk is an OSError, as for any other file."""
    with path.open("wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


def recall(
    index: KeyIndex,
    keys: Keys,
    queries: Float[np.ndarray, "query dim"],
    bars: Float[np.ndarray, " query"],
    top_b: int,
) -> float:
    """Share of the exact top-b keys that the index finds, over all queries.

    Args:
        index: What is measured.
        keys: All its keys.
        queries: What to look for.
        bars: What `exact_bars` says of them. A found key counts if it is as similar as the b-th best: among equal
            keys, one is as good as the other.
        top_b: Keys to find.
    """
    found = index.search(queries, min(top_b, len(keys))).keys
    rows, places = np.unique(np.maximum(found, 0), return_inverse=True)
    similarities = np.einsum("qd,qbd->qb", queries, keys[rows][places.reshape(found.shape)], dtype=np.float32)
    return float(((similarities >= bars[:, None] - _ROUNDING) & (found >= 0)).mean())


def exact_bars(keys: Keys, queries: Float[np.ndarray, "query dim"], top_b: int) -> Float[np.ndarray, " query"]:
    """The similarity of each query's b-th best key, by brute force, block by block."""
    best = np.empty((len(queries), 0), dtype=np.float32)
    for _, block in _blocks(keys):
        best = np.concatenate([best, queries @ block.T], axis=1)
        if best.shape[1] > top_b:
            best = np.partition(best, best.shape[1] - top_b, axis=1)[:, -top_b:]
    bars: np.ndarray = best.min(axis=1)
    return bars


def tune_effort(
    path: Path, info: IndexInfo, keys: Keys, queries: Float[np.ndarray, "query dim"], top_b: int
) -> tuple[IndexInfo, float]:
    """Double a written index's search effort until its recall is good, a few times at most.

    Returns:
        What the manifest says of the index, and its recall.
    """
    bars, limit = exact_bars(keys, queries, top_b), info.effort * _MOST_EFFORT
    while True:
        found = recall(KeyIndex(path, info), keys, queries, bars, top_b)
        if found >= _GOOD_RECALL or info.effort >= limit:
            return info, found
        info = info.model_copy(update={"effort": 2 * info.effort})


def _empty_index(kind: str, keys: int, dim: int) -> tuple[Any, int]:
    match kind:
        case "flat":
            return faiss.IndexFlatIP(dim), 0
        case "ivf":
            lists = max(1, min(int(4 * math.sqrt(keys)), keys // 39))
            coarse = faiss.IndexFlatIP(dim)
            index = faiss.IndexIVFFlat(coarse, dim, lists, faiss.METRIC_INNER_PRODUCT)
            coarse.this.disown()  # the index owns its quantiser
            index.own_fields = True
            return index, max(1, lists // 16)
        case "hnsw":
            index = faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_8bit, _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _HNSW_CONSTRUCTION_EFFORT
            return index, _HNSW_SEARCH_EFFORT
    raise ValueError(f"unknown kind of index: {kind}")


def _training_sample(keys: Keys, index: Any, first_row: int) -> Float[np.ndarray, "sample dim"]:
    wanted = getattr(index, "nlist", 1024) * _IVF_TRAINING_KEYS_PER_LIST
    rows = np.linspace(0, len(keys) - 1, num=min(wanted, len(keys)), dtype=np.int64)
    sample = np.ascontiguousarray(keys[rows], dtype=np.float32)
    _check_units(sample, first_row + rows)
    return sample


def _blocks(keys: Keys) -> Iterator[tuple[int, Float[np.ndarray, "block dim"]]]:
    """Each block, in float32, after the row it starts at."""
    for start in range(0, len(keys), _BLOCK_KEYS):
        yield start, np.ascontiguousarray(keys[start : start + _BLOCK_KEYS], dtype=np.float32)


def _check_units(keys: Float[np.ndarray, "row dim"], rows: Int[np.ndarray, " row"]) -> None:
    norms = np.linalg.norm(keys, axis=1)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= _NORM_TOLERANCE))  # a NaN compares false, so counts as wrong
    if len(wrong):
        raise BuildError(
            f"keys.npy: row {rows[wrong[0]]}: expected a unit vector, found length {norms[wrong[0]]:.4g}; "
            "encode the memory again with `recollect train --overwrite`"
        )
