"""The searcher: the top-b keys of each query, by inner product.

Instance keys and label keys have an index each. A joint index with selectors would answer lambda = 0 and lambda = 1
badly: an HNSW walk whose selector passes few keys comes back nearly empty. Two lists of b merge into the joint top b.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

from service.bundle.bundle import Bundle
from service.bundle.manifest import IndexInfo
from service.errors import opening
from service.predictor.comparison import similarities
from service.predictor.gpu import GpuIndex, NoGpuError
from service.settings import Device


@dataclass(frozen=True)
class Neighbours:
    """Found keys in falling similarity.

    A key is an instance's row, or the number of instances plus a label's position; -1, with similarity -inf, stands
    where fewer keys were found.
    """

    similarities: Float[np.ndarray, "query top_b"]
    keys: Int[np.ndarray, "query top_b"]


class KeyIndex:
    """One faiss index with its manifest's search effort; mapped, and on a GPU copied there beside.

    Attributes:
        on_cpu: Why it is not on the GPU that was asked for; empty where it is, or none was.
    """

    def __init__(self, path: Path, info: IndexInfo, device: Device = "cpu") -> None:
        with opening(path):
            self.index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        self._info = info
        self._on_gpu: GpuIndex | None = None
        self.on_cpu = ""
        if device != "cpu":
            try:
                self._on_gpu = GpuIndex(self.index)
            except NoGpuError as error:
                self.on_cpu = f"{path.name} ({info.factory}): {error}"
        self.keys: int = self.index.ntotal
        self.shape: tuple[int, int] = (self.index.ntotal, self.index.d)
        self.lists: int = getattr(unwrapped(self.index), "nlist", 0)

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int) -> Neighbours:
        top_b = min(top_b, self.keys)
        parameters = self._parameters(self.index, top_b)
        found = self._search_gpu(vectors, top_b, parameters)
        values, keys = found or self.index.search(vectors, top_b, params=parameters)
        return Neighbours(np.where(keys < 0, -np.inf, values), keys)

    def compare(self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]) -> Float[np.ndarray, " key"]:
        """The similarity of a query to some keys, which rise."""
        return similarities(self.index, vector, keys)

    def at(self, info: IndexInfo) -> KeyIndex:
        """The same opened index at another effort."""
        other = copy.copy(self)
        other._info = info
        return other

    def _search_gpu(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int, parameters: Any
    ) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]] | None:
        """What the GPU finds; None where it is not there, cannot look that far, or is out of memory."""
        inner = getattr(parameters, "index_params", parameters)
        if self._on_gpu is None or not self._on_gpu.can_search(top_b, getattr(inner, "nprobe", 0)):
            return None
        try:
            return self._on_gpu.search(vectors, top_b, parameters)
        except RuntimeError:
            return None

    def _parameters(self, index: Any, top_b: int) -> Any:
        """The effort in the form that an index wants: its layers outside in, down to lists or a graph."""
        match faiss.downcast_index(index):
            case faiss.IndexPreTransform() as transform:
                return faiss.SearchParametersPreTransform(index_params=self._parameters(transform.index, top_b))
            case faiss.IndexRefine() as refine:
                candidates = min(math.ceil(top_b * self._info.refine), self.keys)
                base = self._parameters(refine.base_index, candidates)
                return faiss.IndexRefineSearchParameters(k_factor=candidates / top_b, base_index_params=base)
            case faiss.IndexIVF() as lists:
                share = math.ceil(lists.nlist * top_b / self.keys)  # all lists when all keys are asked for
                return faiss.SearchParametersIVF(nprobe=max(self._info.effort, share))
            case faiss.IndexHNSW():
                return faiss.SearchParametersHNSW(efSearch=max(self._info.effort, top_b))
        return None


def unwrapped(index: Any) -> Any:
    """The lists, graph or codes under an index's transforms and refinements."""
    index = faiss.downcast_index(index)
    match index:
        case faiss.IndexPreTransform():
            return unwrapped(index.index)
        case faiss.IndexRefine():
            return unwrapped(index.base_index)
    return index


def refines(index: Any) -> bool:
    """Whether an index compares its candidates again, more exactly."""
    index = faiss.downcast_index(index)
    return isinstance(index, faiss.IndexRefine) or (isinstance(index, faiss.IndexPreTransform) and refines(index.index))


class Searcher:
    """Both parts of a bundle's memory."""

    def __init__(self, bundle: Bundle, device: Device = "cpu") -> None:
        index = bundle.manifest.index
        self.instances = KeyIndex(bundle.folder / "instance_keys.faiss", index.instances, device)
        self.labels = KeyIndex(bundle.folder / "label_keys.faiss", index.labels, device)

    @property
    def on_cpu(self) -> list[str]:
        """Why a part is not on the GPU that was asked for."""
        return [part.on_cpu for part in (self.instances, self.labels) if part.on_cpu]

    @property
    def keys(self) -> int:
        return self.instances.keys + self.labels.keys

    def search(self, vectors: Float[np.ndarray, "query dim"], top_b: int, lambda_: float) -> Neighbours:
        """The top-b keys of the part of the memory that lambda gives a vote."""
        return search_voting(self.instances.search, self.labels.search, self.instances.keys, vectors, top_b, lambda_)

    def compare(self, vector: Float[np.ndarray, " dim"], keys: Int[np.ndarray, " key"]) -> Float[np.ndarray, " key"]:
        """The similarity of a query to some keys, which rise, found or not."""
        instances = keys[: np.searchsorted(keys, self.instances.keys)]
        labels = keys[len(instances) :] - self.instances.keys
        return np.concatenate([self.instances.compare(vector, instances), self.labels.compare(vector, labels)])


# Finds the top-b keys of one part of a memory, counted from its own first.
PartSearch = Callable[[Float[np.ndarray, "query dim"], int], Neighbours]


def search_voting(
    search_instances: PartSearch,
    search_labels: PartSearch,
    instances: int,
    vectors: Float[np.ndarray, "query dim"],
    top_b: int,
    lambda_: float,
) -> Neighbours:
    """The top-b keys of the parts of a memory that lambda gives a vote, however each is searched (RAE-XMC, Eq. 5, 8).

    Args:
        search_instances: Searches instance keys.
        search_labels: Searches label keys, which are counted on from the instances.
        instances: How many instance keys there are.
        vectors: Queries.
        top_b: Keys wanted of each.
        lambda_: Weight of instances against labels; at 1 and at 0 the other part is not searched.
    """
    if lambda_ == 1:
        return search_instances(vectors, top_b)
    labels = search_labels(vectors, top_b)
    labels = Neighbours(labels.similarities, np.where(labels.keys < 0, -1, labels.keys + instances))
    if lambda_ == 0:
        return labels
    return merge(search_instances(vectors, top_b), labels, top_b)


def merge(first: Neighbours, second: Neighbours, top_b: int) -> Neighbours:
    """The `top_b` best of two lists; at equal similarity, those of `first` come first."""
    similarities = np.concatenate([first.similarities, second.similarities], axis=1)
    keys = np.concatenate([first.keys, second.keys], axis=1)
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :top_b]
    return Neighbours(np.take_along_axis(similarities, order, axis=1), np.take_along_axis(keys, order, axis=1))
