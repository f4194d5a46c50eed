"""faiss indexes over unit keys with inner product: exact, inverted lists or a graph, streamed from the mapped keys."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from index_builder.console import say
from index_builder.errors import BuildError
from service.bundle.manifest import IndexInfo
from service.predictor.gpu import NoGpuError, gpu_resources, reason
from service.predictor.searcher import refines, unwrapped
from service.settings import Device
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
# What a process of its own tries of a factory string: argument 1; argument 2 is the dimension.
_TRIAL = """
import sys, faiss, numpy
factory, dim = sys.argv[1], int(sys.argv[2])
keys = numpy.random.default_rng(0).standard_normal((3_000, dim)).astype("float32")
faiss.normalize_L2(keys)
try:
    index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(keys)
    index.add(keys)
except RuntimeError:
    sys.exit()  # it says so itself when it is asked to
faiss.deserialize_index(faiss.serialize_index(index)).search(keys[:2], 2)
"""
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
    if device == "cuda":
        try:
            index = _filled_on_gpu(factory, keys, first_row, progress)
            return index, _describe(index, factory)
        except (NoGpuError, RuntimeError) as error:
            say(f"{factory}: built on the CPU: {reason(error)}")
    index = empty_index(factory, keys.shape[1])
    if not index.is_trained:
        _train(index, factory, some_units(keys, _training_rows(len(keys), index), first_row))
    _make_room(index, len(keys))
    for block in _checked(keys, first_row, progress):
        _add(index, factory, block)
    return index, _describe(index, factory)


def _filled_on_gpu(factory: str, keys: Keys, first_row: int, progress: Callable[[int], object]) -> Any:
    """An index whose centroids, where it has such, are trained on a GPU; filled there too, where faiss can."""
    resources, index = gpu_resources(), empty_index(factory, keys.shape[1])
    inner = unwrapped(index)
    if not index.is_trained:
        centroids = None
        if isinstance(inner, faiss.IndexIVF):
            centroids = faiss.index_cpu_to_gpu(resources, 0, faiss.IndexFlatIP(inner.d))
            inner.clustering_index = centroids
        index.train(some_units(keys, _training_rows(len(keys), index), first_row))
        if centroids is not None:
            inner.clustering_index = None
    try:
        growing = faiss.index_cpu_to_gpu(resources, 0, index)
    except RuntimeError as error:
        say(f"{factory}: trained on the GPU, filled on the CPU: {reason(error)}")
        growing = index
        _make_room(index, len(keys))
    for block in _checked(keys, first_row, progress):
        growing.add(block)
    filled = index if growing is index else faiss.downcast_index(faiss.index_gpu_to_cpu(growing))
    if type(filled) is not type(faiss.downcast_index(index)):
        raise NoGpuError("faiss brings another kind of index back from the GPU")
    return filled


def _checked(keys: Keys, first_row: int, progress: Callable[[int], object]) -> Iterator[Float[np.ndarray, "block dim"]]:
    """Every block of unit vectors; `progress` is told of each once it is dealt with."""
    for start, block in blocks(keys):
        _check_units(block, first_row + start + np.arange(len(block)))
        yield block
        progress(len(block))


def check_factory(factory: str, dim: int) -> None:
    """Refuse a factory string that faiss rejects, or that ends it: some crash only when keys come, or are read back.

    It is tried out in a process of its own, on a few keys and in a few lists.

    Raises:
        BuildError: Saying what faiss did.
    """
    few = re.sub(r"IVF[1-9]\d*", "IVF4", factory)
    tried = subprocess.run([sys.executable, "-c", _TRIAL, few, str(dim)], capture_output=True, text=True)
    if tried.returncode < 0:
        name = signal.Signals(-tried.returncode).name
        raise BuildError(f"--index {factory!r}: expected an index that faiss can build, found that it dies of {name}")
    empty_index(factory, dim)
    if tried.returncode:
        raise BuildError(
            f"--index {factory!r}: expected an index that faiss can build, write and read back, found: "
            f"{tried.stderr.strip().splitlines()[-1]}"
        )


def empty_index(factory: str, dim: int) -> Any:
    """An index as faiss's factory makes it.

    Raises:
        BuildError: If faiss knows no such string, or not for inner products.
    """
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected auto, flat, ivf, hnsw or a faiss factory string for keys of {dim} "
            f"dimensions, faiss says: {reason(error)}"
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


def _make_room(index: Any, keys: int) -> None:
    """Take the memory for all codes at once: an array that grows as keys come is copied, and held twice meanwhile."""
    for store in _stores(index):
        store.codes.resize(keys * store.code_size)
        store.codes.resize(0)


def _train(index: Any, factory: str, sample: Float[np.ndarray, "sample dim"]) -> None:
    try:
        index.train(sample)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected keys enough to train it, found {len(sample):,}: {reason(error)}; "
            "ask for fewer clusters, or build with --index auto"
        ) from None


def _add(index: Any, factory: str, block: Float[np.ndarray, "block dim"]) -> None:
    try:
        index.add(block)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected an index that takes keys block by block, faiss says: {reason(error)}; "
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
