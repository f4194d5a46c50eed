"""The searcher: finds the top-b keys of each query by inner product.

Instance keys and label keys have separate indexes. The b best keys of both indexes are merged into the b best keys
overall. A single index with a filter on keys would be bad at lambda 0 and 1: an HNSW search that may return only few
keys finds almost none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import faiss
import numpy as np
from jaxtyping import Float, Int

from recollect.core import extras
from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.manifest import IndexInfo
from recollect.core.errors import BundleError, opening
from recollect.core.neighbours import Found, Neighbours
from recollect.core.search.gpu import GpuIndex, NoGpuError
from recollect.core.search.similarity import similarities_to_keys
from recollect.core.settings import Device, EngineSettings

# If queries x dimensions exceed this number, faiss compares a batch of queries with all keys of a flat index by matrix
# multiplication. On one thread, this takes half of the time for 6 queries of 384 dimensions, and a fifth for 32; for 3
# queries it is as fast as one comparison at a time. The default of faiss, 128,000, is for many threads.
_MULTIPLY_FROM = 2_000
faiss.cvar.distance_compute_blas_threshold = _MULTIPLY_FROM


class OpenIndex:
    """One memory-mapped faiss index, and a copy of it on the GPU if a GPU is used."""

    def __init__(self, path: Path, device: Device = "cpu") -> None:
        with opening(path):
            self.faiss: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        self.file_name = path.name
        self.on_gpu: GpuIndex | None = None
        self.cpu_reason = ""
        if device != "cpu":
            try:
                self.on_gpu = GpuIndex(self.faiss)
            except NoGpuError as error:
                self.cpu_reason = str(error)


class KeyIndex:
    """An open index with its search effort."""

    def __init__(self, opened: OpenIndex, info: IndexInfo) -> None:
        self._opened, self.info = opened, info
        self.index: Any = opened.faiss
        reason = opened.cpu_reason
        self.cpu_reason = f"{opened.file_name} ({info.factory}): {reason}" if reason else ""
        self.keys: int = self.index.ntotal
        self.shape: tuple[int, int] = (self.index.ntotal, self.index.d)
        self.lists: int = getattr(unwrapped(self.index), "nlist", 0)
        self._last_parameters: tuple[int, Any] = (0, None)  # most queries have the default b

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
        top_b = min(top_b, self.keys)
        last_top_b, parameters = self._last_parameters
        if last_top_b != top_b:
            parameters = self._parameters(self.index, top_b)
            self._last_parameters = top_b, parameters
        found = self._search_gpu(vectors, top_b, parameters)
        values, keys = found or self.index.search(vectors, top_b, params=parameters)
        if keys.min(initial=0) < -1 or keys.max(initial=0) >= self.keys:
            raise BundleError(
                f"{self._opened.file_name}: expected keys below {self.keys:,}, found others; build the bundle again"
            )
        if (keys[:, -1:] < 0).any():  # the missing keys of a query are its last ones
            values[keys < 0] = -np.inf
        return Neighbours(values, keys)

    def similarities(
        self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
    ) -> Float[np.ndarray, " key"]:
        return similarities_to_keys(self.index, vector, keys)

    def at(self, info: IndexInfo) -> KeyIndex:
        """The same open faiss index with another search effort."""
        return KeyIndex(self._opened, info)

    def _search_gpu(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int, parameters: Any
    ) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]] | None:
        """Search on the GPU; None if the index is not there, the search exceeds its limits, or its memory is full."""
        inner, on_gpu = getattr(parameters, "index_params", parameters), self._opened.on_gpu
        if on_gpu is None or not on_gpu.can_search(top_b, getattr(inner, "nprobe", 0)):
            return None
        try:
            return on_gpu.search(vectors, top_b, parameters)
        except RuntimeError:
            return None

    def _parameters(self, index: Any, top_b: int) -> Any:
        """The search effort as faiss search parameters, which are nested in the same way as the layers of the index."""
        match faiss.downcast_index(index):
            case faiss.IndexPreTransform() as transform:
                return faiss.SearchParametersPreTransform(index_params=self._parameters(transform.index, top_b))
            case faiss.IndexRefine() as refine:
                candidates = min(math.ceil(top_b * self.info.refine), self.keys)
                base = self._parameters(refine.base_index, candidates)
                return faiss.IndexRefineSearchParameters(k_factor=candidates / top_b, base_index_params=base)
            case faiss.IndexIVF() as lists:
                share = math.ceil(lists.nlist * top_b / self.keys)  # all keys need all lists
                return faiss.SearchParametersIVF(nprobe=max(self.info.effort, share))
            case faiss.IndexHNSW():
                return faiss.SearchParametersHNSW(efSearch=max(self.info.effort, top_b))
        return None


def unwrapped(index: Any) -> Any:
    """The faiss index (inverted lists, a graph or flat codes) inside the layers for transforms and refinement."""
    index = faiss.downcast_index(index)
    match index:
        case faiss.IndexPreTransform():
            return unwrapped(index.index)
        case faiss.IndexRefine():
            return unwrapped(index.base_index)
    return index


def refines(index: Any) -> bool:
    """Whether a search of the index compares its candidates again with more exact codes."""
    index = faiss.downcast_index(index)
    return isinstance(index, faiss.IndexRefine) or (isinstance(index, faiss.IndexPreTransform) and refines(index.index))


# Gets each call of an engine: its method, its seconds, and the kind of its failure; None if the engine answered.
Observer = Callable[[str, float, str | None], None]


@runtime_checkable
class Keys(Protocol):
    """The keys of one kind, which can be searched. The number of a key is its row among them."""

    @property
    def keys(self) -> int:
        """Number of keys."""

    @property
    def cpu_reason(self) -> str:
        """Why the requested GPU is not used; empty if it is used, or if no GPU was requested."""

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
        """The nearest keys of each query."""

    def similarities(
        self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
    ) -> Float[np.ndarray, " key"]:
        """The similarities of a query to the given keys; the keys must be in rising order."""


@runtime_checkable
class Engine(Protocol):
    """The connection to a program that has the keys of a bundle, such as Milvus.

    Attributes:
        problem: Why calls fail at once; None while the engine answers.
        observer: Gets all calls; None if nothing does.
    """

    problem: str | None
    observer: Observer | None

    def close(self) -> None: ...


class Searcher:
    """Searches both kinds of keys: instance keys and label keys."""

    def __init__(self, instances: Keys, labels: Keys, engine: Engine | None = None) -> None:
        self.instances, self.labels, self.engine = instances, labels, engine

    @classmethod
    def open(cls, bundle: Bundle, device: Device = "cpu", engine: EngineSettings | None = None) -> Searcher:
        """Open the indexes of a bundle, or connect to its engine; `engine` None reads the environment variables."""
        manifest = bundle.manifest
        if manifest.engine is not None:
            hook = extras.load("key engine", manifest.engine.name)
            opened: Searcher = hook.open_searcher(manifest, engine or EngineSettings())
            return opened
        info, counts = manifest.index, manifest.counts
        return cls(
            _open_keys(bundle, "instance_keys.faiss", info.instances, counts.instances, device),
            _open_keys(bundle, "label_keys.faiss", info.labels, counts.labels, device),
        )

    def close(self) -> None:
        """Close the connection to the engine of the keys, if there is one."""
        if self.engine is not None:
            self.engine.close()

    @property
    def cpu_reasons(self) -> list[str]:
        """The reasons why an index does not use the requested GPU."""
        return [part.cpu_reason for part in (self.instances, self.labels) if part.cpu_reason]

    @property
    def keys(self) -> int:
        return self.instances.keys + self.labels.keys

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int, lambda_: float | None = None) -> Found:
        """The top-b instances and the top-b labels; lambda 0 leaves out the instances, and lambda 1 the labels."""
        nothing = Neighbours.missing(len(vectors), 0)
        return Found(
            instances=self.instances.search(vectors, top_b) if lambda_ != 0 else nothing,
            labels=self.labels.search(vectors, top_b) if lambda_ != 1 else nothing,
        )

    def similarities(
        self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]
    ) -> Float[np.ndarray, " key"]:
        """The similarities of a query to the given keys; the keys must be in rising order."""
        instances = keys[: np.searchsorted(keys, self.instances.keys)]
        labels = keys[len(instances) :] - self.instances.keys
        return np.concatenate(
            [self.instances.similarities(vector, instances), self.labels.similarities(vector, labels)]
        )


def _open_keys(bundle: Bundle, name: str, info: IndexInfo, keys: int, device: Device) -> KeyIndex:
    index = KeyIndex(bundle.components.open(OpenIndex, name, device), info)
    bundle.require_shape(name, index.shape, (keys, bundle.manifest.dim))
    return index
