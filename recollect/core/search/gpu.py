"""Runs faiss indexes on a GPU.

On a GPU, faiss can search flat indexes and inverted lists whose keys are uncompressed, eight-bit or product-quantised.
HNSW graphs, refining indexes and fast-scan codes run on the CPU only. Only the package `faiss-gpu` supports GPUs.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

# Maximum number of keys that a search on a GPU can return; also the maximum number of inverted lists that it can
# search.
_MAX_KEYS_OR_LISTS = 2_048
# Temporary GPU memory of one index; faiss's default is 1.5 GB.
_SCRATCH_BYTES = 256 << 20


class NoGpuError(Exception):
    """Raised if an index or a process cannot use a GPU; the message gives the reason."""


class GpuIndex:
    """A copy of a faiss index in the memory of the first GPU."""

    def __init__(self, index: Any) -> None:
        self._resources = gpu_resources()  # not shared with other indexes, because these resources are not thread-safe
        self._resources.setTempMemory(_SCRATCH_BYTES)
        try:
            self._index = faiss.index_cpu_to_gpu(self._resources, 0, index)
        except RuntimeError as error:
            raise NoGpuError(f"faiss cannot copy the index to the GPU: {reason(error)}") from None
        self._searching = threading.Lock()

    @staticmethod
    def can_search(top_b: int, lists: int) -> bool:
        """Whether a GPU supports a search for `top_b` keys in `lists` lists."""
        return max(top_b, lists) <= _MAX_KEYS_OR_LISTS

    def search(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int, parameters: Any
    ) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]]:
        with self._searching:
            found: tuple[np.ndarray, np.ndarray] = self._index.search(vectors, top_b, params=parameters)
        return found


def gpu_resources() -> Any:
    """GPU resources of faiss for the first GPU. These resources are not thread-safe."""
    if not hasattr(faiss, "StandardGpuResources"):
        raise NoGpuError("this faiss does not support GPUs; it needs recollect-xmc[gpu] in place of [cpu]")
    if faiss.get_num_gpus() == 0:
        raise NoGpuError("faiss finds no GPU")
    return faiss.StandardGpuResources()


def reason(error: Exception) -> str:
    """The message of a faiss error, without the position in faiss's source code."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", str(error).strip().splitlines()[-1])
