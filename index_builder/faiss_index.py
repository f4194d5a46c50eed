"""faiss indexes over unit keys with inner product: exact, inverted lists or a graph, streamed from the mapped keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from index_builder.console import say
from index_builder.errors import BuildError
from service.gpu import Device, NoGpuError, gpu_resources
from service.manifest import IndexInfo
from service.searcher import refines, unwrapped
from trainer.label_keys import LabelKeys

# Keys in rows: mapped, or mixed as they are read.
Keys = Float[np.ndarray, "key dim"] | LabelKeys

# Keys that are read, checked and added at a time.
_BLOCK_KEYS = 65_536
# A key must have length 1 within what float16 storage loses.
_NORM_TOLERANCE = 5e-3

# A graph half as dense as RAE-XMC's (64 links, 500) over keys in eight bits.
_HNSW_LINKS, _HNSW_CONSTRUCTION_EFFORT = 32, 100
# Where a search begins that nobody tuned: efSearch of a graph; of lists, one in so many; candidates compared again.
HNSW_EFFORT, _IVF_SHARE, _REFINEMENT = 300, 16, 2
# faiss's k-means wants 39 keys a centroid at least; more than 64 changes little.
_LEAST_KEYS_PER_LIST, _TRAINING_KEYS_PER_CENTROID, _MOST_TRAINING_KEYS = 39, 64, 1 << 18
# Centroids of a product quantiser whose codes are bytes.
_CODEBOOK = 256


def factory_string(kind: str, keys: int) -> str:
    """The faiss name of `flat`, `ivf` or `hnsw` over so many keys; any other string is taken for such a name."""
    match kind:
        case "flat":
            return "Flat"
        case "ivf":
            return f"IVF{lists(keys)},SQ8"
        case "hnsw":
            return f"HNSW{_HNSW_LINKS},SQ8"
    return kind


def lists(keys: int) -> int:
    """Inverted lists for so many keys: four times their root, and never too few keys to place them."""
    return max(1, min(int(4 * math.sqrt(keys)), keys // _LEAST_KEYS_PER_LIST))


def build_index(
    keys: Keys, kind: str, first_row: int, progress: Callable[[int], object], device: Device = "cpu"
) -> tuple[Any, IndexInfo]:
    """Build an index over mapped keys, reading them block by block.

    Args:
        keys: Unit vectors, float32 or float16; usually a slice of a mapped memory.
        kind: `flat`, `ivf`, `hnsw` or a faiss factory string.
        first_row: The row of `keys[0]` in the memory, for messages.
        progress: Told after each block how many keys it held.
        device: Where to train and add; what has no GPU form is added on the CPU, which is said.

    Returns:
        The faiss index, and what the manifest says of it.

    Raises:
        BuildError: If a key is not a finite unit vector (names its row), or faiss rejects the factory string, cannot
            train it on so few keys or not add to it.
    """
    factory = factory_string(kind, len(keys))
    index = empty_index(factory, keys.shape[1])
    if not index.is_trained:
        _train(index, factory, some_units(keys, _training_rows(len(keys), index), first_row), device)
    for store in _stores(index):  # one that grows as keys come is copied again and again, and held twice meanwhile
        store.codes.resize(len(keys) * store.code_size)
        store.codes.resize(0)
    growing = index if device == "cpu" else _on_gpu(index, factory)
    for start, block in blocks(keys):
        _check_units(block, first_row + start + np.arange(len(block)))
        _add(growing, factory, block)
        progress(len(block))
    index = index if growing is index else faiss.index_gpu_to_cpu(growing)
    return index, _describe(index, factory)


def empty_index(factory: str, dim: int) -> Any:
    """An index as faiss's factory makes it.

    Raises:
        BuildError: If faiss knows no such string, or not for inner products.
    """
    if re.search(r"[A-Za-z]0+(?![0-9.])", factory):  # of some, faiss makes indexes that end the process
        raise BuildError(f"--index {factory!r}: expected counts of at least 1, found 0")
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected auto, flat, ivf, hnsw or a faiss factory string for keys of {dim} "
            f"dimensions, faiss says: {_reason(error)}"
        ) from None
    inner = unwrapped(index)
    if isinstance(inner, faiss.IndexHNSW):
        inner.hnsw.efConstruction = _HNSW_CONSTRUCTION_EFFORT
    return index


def check_units(keys: Keys, first_row: int) -> None:
    """Refuse keys that are no unit vectors.

    Raises:
        BuildError: Naming the first one's row.
    """
    for start, block in blocks(keys):
        _check_units(block, first_row + start + np.arange(len(block)))


def some_units(keys: Keys, rows: Int[np.ndarray, " row"], first_row: int) -> Float[np.ndarray, "row dim"]:
    """Some keys, in float32.

    Raises:
        BuildError: If one is no unit vector; it names its row.
    """
    some = np.ascontiguousarray(keys[rows], dtype=np.float32)
    _check_units(some, first_row + rows)
    return some


def blocks(keys: Keys) -> Iterator[tuple[int, Float[np.ndarray, "block dim"]]]:
    """Each block, in float32, after the row it starts at."""
    for start in range(0, len(keys), _BLOCK_KEYS):
        yield start, np.ascontiguousarray(keys[start : start + _BLOCK_KEYS], dtype=np.float32)


def write_index(index: Any, path: Path) -> None:
    """Write an index; a full disk is an OSError, as for any other file."""
    with path.open("wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


def _stores(index: Any) -> Iterator[Any]:
    """All parts of an index that hold codes in one array."""
    match faiss.downcast_index(index):
        case faiss.IndexPreTransform() as transform:
            yield from _stores(transform.index)
        case faiss.IndexRefine() as refine:
            yield from _stores(refine.base_index)
            yield from _stores(refine.refine_index)
        case faiss.IndexHNSW() as graph:
            yield from _stores(graph.storage)
        case faiss.IndexFlatCodes() as codes:
            yield codes


def _on_gpu(index: Any, factory: str) -> Any:
    """A copy on the GPU, where faiss has a form of it for that; else the index itself."""
    try:
        resources = gpu_resources()
        return faiss.index_cpu_to_gpu(resources, 0, index)
    except (NoGpuError, RuntimeError) as error:
        say(f"{factory}: keys are added on the CPU: {str(error).strip().splitlines()[-1]}")
        return index


def _train(index: Any, factory: str, sample: Float[np.ndarray, "sample dim"], device: Device) -> None:
    inner = unwrapped(index)
    if device == "cuda" and isinstance(inner, faiss.IndexIVF):
        try:  # the centroids, which take most of the time
            resources = gpu_resources()
            inner.clustering_index = faiss.index_cpu_to_gpu(resources, 0, faiss.IndexFlatIP(inner.d))
        except NoGpuError as error:
            say(f"{factory}: trained on the CPU: {error}")
    try:
        index.train(sample)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected keys enough to train it, found {len(sample):,}: {_reason(error)}; "
            "ask for fewer clusters, or build with --index auto"
        ) from None


def _add(index: Any, factory: str, block: Float[np.ndarray, "block dim"]) -> None:
    try:
        index.add(block)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected an index that takes keys block by block, faiss says: {_reason(error)}; "
            "build with --index auto"
        ) from None


def _describe(index: Any, factory: str) -> IndexInfo:
    inner, keys, refine = unwrapped(index), index.ntotal, _REFINEMENT if refines(index) else 1
    if isinstance(inner, faiss.IndexHNSW):
        return IndexInfo(kind="hnsw", factory=factory, keys=keys, effort=HNSW_EFFORT, refine=refine)
    if isinstance(inner, faiss.IndexIVF):
        effort = max(1, inner.nlist // _IVF_SHARE)
        return IndexInfo(kind="ivf", factory=factory, keys=keys, effort=effort, refine=refine)
    return IndexInfo(kind="flat", factory=factory, keys=keys, refine=refine)


def _training_rows(keys: int, index: Any) -> Int[np.ndarray, " row"]:
    centroids = max(getattr(unwrapped(index), "nlist", 1024), _CODEBOOK)
    wanted = min(centroids * _TRAINING_KEYS_PER_CENTROID, _MOST_TRAINING_KEYS, keys)
    return np.linspace(0, keys - 1, num=wanted, dtype=np.int64)


def _check_units(keys: Float[np.ndarray, "row dim"], rows: Int[np.ndarray, " row"]) -> None:
    norms = np.linalg.norm(keys, axis=1)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= _NORM_TOLERANCE))  # a NaN compares false, so counts as wrong
    if len(wrong):
        raise BuildError(
            f"keys.npy: row {rows[wrong[0]]}: expected a unit vector, found length {norms[wrong[0]]:.4g}; "
            "encode the memory again with `recollect train --overwrite`"
        )


def _reason(error: RuntimeError) -> str:
    """What faiss says, without where in its sources it says so."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", str(error).strip().splitlines()[-1])
