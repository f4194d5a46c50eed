"""Build faiss indexes over keys, which are searched by inner product. Keys are read and added block by block."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from jaxtyping import Float, Int

from recollect.core.bundle.manifest import IndexInfo
from recollect.core.search.gpu import NoGpuError, gpu_resources, reason
from recollect.core.search.searcher import refines, unwrapped
from recollect.core.settings import Device
from recollect.core.system.console import print_status
from recollect.index_builder.errors import BuildError
from recollect.trainer.memory.label_keys import LabelKeys
from recollect.trainer.memory.search import blocks

# An array of keys in rows: mapped from a file, or label keys that are computed from texts and instances when read.
Keys = Float[np.ndarray, "key dim"] | LabelKeys

# Tolerance for the length of a unit vector that is stored in float16.
_NORM_TOLERANCE = 5e-3

# Default links and construction effort of a graph. RAE-XMC uses 64 links, effort 500 and keys in full precision.
_HNSW_LINKS, _HNSW_CONSTRUCTION_EFFORT = 32, 100
# Search efforts of an index that is not measured yet: efSearch of a graph; nprobe of inverted lists, as 1/16 of the
# lists; candidates to refine for each requested key.
HNSW_EFFORT, _IVF_SHARE, _REFINEMENT = 300, 16, 2
# The k-means of faiss needs at least 39 keys for each centroid. More than 64 hardly improve the centroids.
_MIN_KEYS_PER_LIST, _TRAINING_KEYS_PER_CENTROID, _MAX_TRAINING_KEYS = 39, 64, 1 << 18
# A GPU links the keys of a graph if there are at least this many; a CPU links fewer in less than a second.
_MIN_KEYS_TO_LINK_ON_GPU = 2_000
# A program that builds, writes, reads and searches an index of a factory string (argument 1) with random keys of a
# dimension (argument 2).
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
    sys.exit()  # building the index will report this error
faiss.deserialize_index(faiss.serialize_index(index)).search(keys[:2], 2)
"""
# Number of centroids of a product quantiser whose codes are bytes.
_CODEBOOK = 256


class KeysToIndex(NamedTuple):
    """The keys of an index, usually a slice of a mapped memory."""

    keys: Keys  # in float32 or float16
    first_row: int = 0  # row of `keys[0]` in the memory, for error messages
    unit: bool = True  # whether all keys must be unit vectors

    def select(self, rows: Int[np.ndarray, " row"]) -> Float[np.ndarray, "row dim"]:
        """Some keys, as `select_keys` checks them."""
        return select_keys(self.keys, rows, self.first_row, self.unit)

    def blocks(self, rows: Int[np.ndarray, " row"] | None = None) -> Iterator[Float[np.ndarray, "block dim"]]:
        """Yield the keys, or those of some rows, block by block; each block is checked like `select`."""
        for block_rows, block in blocks(self.keys, rows):
            _check(block, self.first_row + block_rows, self.unit)
            yield block


def factory_string(kind: str, keys: int, links: int | None = None) -> str:
    """The faiss factory string for `flat`, `ivf` or `hnsw` (with this number of links) and this number of keys.

    Any other `kind` is already a factory string and is returned unchanged.
    """
    match kind:
        case "flat":
            return "Flat"
        case "ivf":
            return f"IVF{lists(keys)},SQ8"
        case "hnsw":
            return f"HNSW{links or _HNSW_LINKS},SQ8"
    return kind


def is_graph(factory: str) -> bool:
    """Whether a faiss factory string has a graph (HNSW or NSG)."""
    return "HNSW" in factory or "NSG" in factory


def lists(keys: int) -> int:
    """Number of inverted lists for a number of keys: four times its square root, or fewer if there are few keys."""
    return max(1, min(int(4 * math.sqrt(keys)), keys // _MIN_KEYS_PER_LIST))


def build_index(
    indexed: KeysToIndex,
    kind: str,
    progress: Callable[[int], object] = lambda keys: None,
    device: Device = "cpu",
    construction_effort: int | None = None,
    rows: Int[np.ndarray, " row"] | None = None,
) -> tuple[Any, IndexInfo]:
    """Build an index over keys, which are read and added block by block. Return it and its manifest entry.

    Args:
        kind: `flat`, `ivf`, `hnsw` or a faiss factory string.
        progress: Called after each block with its number of keys.
        device: Device that trains and fills the index, and links the keys of a graph. If faiss has no GPU version of
            an index, the CPU fills the index, and a message on standard error states this.
        rows: Rows of the keys that a CPU adds, in rising order; None: all.

    Raises:
        BuildError: If a key is not finite or no unit vector (the message names its row), or faiss rejects the factory
            string, needs more keys to train the index, or cannot add keys to the index.
    """
    count, dim = indexed.keys.shape
    factory = factory_string(kind, count)
    if device == "cuda":
        try:
            index = _build_on_gpu(empty_index(factory, dim, construction_effort), factory, indexed, progress)
            return index, _describe(index, factory)
        except (NoGpuError, RuntimeError) as error:
            print_status(f"{factory}: built on the CPU: {reason(error)}")
    index = empty_index(factory, dim, construction_effort)
    if not index.is_trained:
        _train(index, factory, indexed.select(_training_rows(count, index)))
    _reserve_codes(index, count)
    for block in indexed.blocks(rows):
        _add(index, factory, block)
        progress(len(block))
    return index, _describe(index, factory)


def can_add_later(factory: str, dim: int) -> bool:
    """Whether an index is a graph that `add_left_out` can complete."""
    index = empty_index(factory, dim)  # the part that `unwrapped` returns does not keep it alive
    return isinstance(unwrapped(index), faiss.IndexHNSW)


def add_left_out(path: Path, indexed: KeysToIndex, left_out: Int[np.ndarray, " row"]) -> Any:
    """Add the keys that were left out of the file of a graph, and bring all keys into the order of their rows."""
    index = faiss.read_index(str(path))
    index.add(indexed.select(left_out))
    rows = np.append(np.delete(np.arange(len(indexed.keys)), left_out), left_out)
    _permute(index, np.argsort(rows))
    write_index(index, path)
    return index


def _permute(index: Any, order: Int[np.ndarray, " key"]) -> None:
    """Bring the keys of an index into another order. `order` has their present places."""
    match faiss.downcast_index(index):
        case faiss.IndexPreTransform() as transform:
            _permute(transform.index, order)
        case faiss.IndexRefine() as refine:
            _permute(refine.base_index, order)
            _permute(refine.refine_index, order)
        case inner:
            inner.permute_entries(order)


def _build_on_gpu(index: Any, factory: str, indexed: KeysToIndex, progress: Callable[[int], object]) -> Any:
    """Fill an empty index whose centroids are trained on a GPU. The GPU also fills the index if faiss supports that."""
    resources, count = gpu_resources(), len(indexed.keys)
    if isinstance(index, faiss.IndexHNSW) and count >= _MIN_KEYS_TO_LINK_ON_GPU and hasattr(faiss, "GpuIndexCagra"):
        return _build_graph_on_gpu(resources, index, factory, indexed, progress)
    inner = unwrapped(index)
    if not index.is_trained:
        centroids = None
        if isinstance(inner, faiss.IndexIVF):
            centroids = faiss.index_cpu_to_gpu(resources, 0, faiss.IndexFlatIP(inner.d))
            inner.clustering_index = centroids
        index.train(indexed.select(_training_rows(count, index)))
        if centroids is not None:
            inner.clustering_index = None
    try:
        filling = faiss.index_cpu_to_gpu(resources, 0, index)
    except RuntimeError as error:
        print_status(f"{factory}: trained on the GPU, filled on the CPU: {reason(error)}")
        filling = index
        _reserve_codes(index, count)
    for block in indexed.blocks():
        filling.add(block)
        progress(len(block))
    # A proxy of `downcast_index` would not keep the new index alive.
    filled = index if filling is index else faiss.index_gpu_to_cpu(filling)
    if type(faiss.downcast_index(filled)) is not type(faiss.downcast_index(index)):
        raise NoGpuError("faiss returned another kind of index from the GPU")
    return filled


def _build_graph_on_gpu(
    resources: Any, index: Any, factory: str, indexed: KeysToIndex, progress: Callable[[int], object]
) -> Any:
    """Link the keys of an empty graph on a GPU, which holds all keys in float16 meanwhile.

    The algorithm is CAGRA (Ootomo et al., ICDE 2024; https://arxiv.org/abs/2308.15136). It ignores efConstruction.
    """
    links, count = index.hnsw.nb_neighbors(0), len(indexed.keys)
    halves = np.empty(indexed.keys.shape, dtype=np.float16)
    if not index.is_trained:
        _train(index, factory, indexed.select(_training_rows(count, index)))
    _reserve_codes(index, count)
    for block in indexed.blocks():
        halves[index.storage.ntotal :][: len(block)] = block
        index.storage.add(block)
        progress(len(block))
    settings = faiss.GpuIndexCagraConfig()
    settings.graph_degree, settings.intermediate_graph_degree = links, 2 * links
    settings.guarantee_connectivity = True
    on_gpu = faiss.GpuIndexCagra(resources, index.d, index.metric_type, settings)
    on_gpu.train(halves, numeric_type=faiss.Float16)
    return linked_graph(index, faiss.vector_to_array(on_gpu.get_knngraph()).reshape(count, links))


def linked_graph(index: Any, linked: Int[np.ndarray, "key links"]) -> Any:
    """Make a graph of one level from the links of its keys. Each search starts from the best of 256 random keys.

    Args:
        index: A graph without links whose storage has all keys. Its storage moves to the new graph.
        linked: The keys that each key is linked to; their number is twice the links (M) of the graph.
    """
    keys, links = linked.shape
    graph = faiss.IndexHNSWCagra(index.d, links // 2, index.metric_type)
    graph.base_level_only = True
    graph.hnsw.prepare_level_tab(keys, False)
    first = faiss.vector_to_array(graph.hnsw.offsets)[:-1].astype(np.int64)
    neighbours = faiss.rev_swig_ptr(graph.hnsw.neighbors.data(), graph.hnsw.neighbors.size())
    neighbours[first[:, None] + np.arange(links)] = linked
    graph.storage, graph.ntotal, index.own_fields = index.storage, keys, False
    return graph


def check_factory(factory: str, dim: int) -> None:
    """Check that faiss can build, write and read an index of this factory string.

    With some strings, faiss crashes when keys are added or when the index is read. So the check runs in a separate
    process. It uses few keys and few inverted lists, so it is fast.

    Raises:
        BuildError: If faiss cannot; the message describes the error or the crash.
    """
    few = re.sub(r"IVF[1-9]\d*", "IVF4", factory)
    tried = subprocess.run([sys.executable, "-c", _TRIAL, few, str(dim)], capture_output=True, text=True)
    if tried.returncode < 0:
        name = signal.Signals(-tried.returncode).name
        raise BuildError(
            f"--index {factory!r}: expected an index that faiss can build, found that faiss crashes with {name}; "
            "choose another index"
        )
    empty_index(factory, dim)
    if tried.returncode:
        raise BuildError(
            f"--index {factory!r}: expected an index that faiss can build, write and read back, found: "
            f"{tried.stderr.strip().splitlines()[-1]}"
        )


def empty_index(factory: str, dim: int, construction_effort: int | None = None) -> Any:
    """Create an empty index; a `BuildError` if faiss does not support one of this string for inner products."""
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected auto, flat, ivf, hnsw or a faiss factory string for keys of {dim} "
            f"dimensions, faiss says: {reason(error)}"
        ) from None
    inner = unwrapped(index)
    if isinstance(inner, faiss.IndexHNSW):
        inner.hnsw.efConstruction = construction_effort or _HNSW_CONSTRUCTION_EFFORT
    return index


def select_keys(
    keys: Keys, rows: Int[np.ndarray, " row"], first_row: int, unit: bool = True
) -> Float[np.ndarray, "row dim"]:
    """Select keys by row, in float32.

    Raises:
        BuildError: If a selected key is not finite or no unit vector; the message names its row.
    """
    some = np.ascontiguousarray(keys[rows], dtype=np.float32)
    _check(some, first_row + rows, unit)
    return some


def write_index(index: Any, path: Path) -> None:
    """Write an index to a file. On a full disk the function raises OSError, not an error of faiss."""
    with path.open("wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


def _code_arrays(index: Any) -> Iterator[Any]:
    """Yield the component indexes that store all their codes in one array."""
    match faiss.downcast_index(index):
        case faiss.IndexPreTransform() as transform:
            yield from _code_arrays(transform.index)
        case faiss.IndexRefine() as refine:
            yield from _code_arrays(refine.base_index)
            yield from _code_arrays(refine.refine_index)
        case faiss.IndexHNSW() as graph:
            yield from _code_arrays(graph.storage)
        case faiss.IndexFlatCodes() as codes:
            yield codes


def _reserve_codes(index: Any, keys: int) -> None:
    """Reserve memory for all codes at once. An array that grows later is copied and needs twice the memory."""
    for store in _code_arrays(index):
        store.codes.resize(keys * store.code_size)
        store.codes.resize(0)


def _train(index: Any, factory: str, sample: Float[np.ndarray, "sample dim"]) -> None:
    try:
        index.train(sample)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected enough keys to train the index, found {len(sample):,}: {reason(error)}; "
            "use fewer clusters, or build with --index auto"
        ) from None


def _add(index: Any, factory: str, block: Float[np.ndarray, "block dim"]) -> None:
    try:
        index.add(block)
    except RuntimeError as error:
        raise BuildError(
            f"--index {factory!r}: expected an index that accepts keys block by block, faiss says: {reason(error)}; "
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
    wanted = min(centroids * _TRAINING_KEYS_PER_CENTROID, _MAX_TRAINING_KEYS, keys)
    return np.linspace(0, keys - 1, num=wanted, dtype=np.int64)


def _check(keys: Float[np.ndarray, "row dim"], rows: Int[np.ndarray, " row"], unit: bool) -> None:
    norms = np.linalg.norm(keys, axis=1)
    # A comparison with NaN is false, so NaN counts as wrong.
    right = np.abs(norms - 1) <= _NORM_TOLERANCE if unit else np.isfinite(norms)
    wrong = np.flatnonzero(~right)
    if len(wrong):
        expected = "a unit vector" if unit else "a vector of finite numbers"
        raise BuildError(
            f"keys.npy: row {rows[wrong[0]]}: expected {expected}, found length {norms[wrong[0]]:.4g}; "
            "encode the memory again with `recollect train --overwrite`"
        )
