"""The GPU, where it is asked for: what of a bundle can go there, and why the rest stays on the CPU.

faiss has a GPU form of exact indexes and of inverted lists over plain, eight-bit or product-quantised keys; graphs,
refinements and fast-scan codes search on the CPU. Its Python package has GPUs in `faiss-gpu` alone.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import faiss
import numpy as np
from jaxtyping import Float, Int

# Keys that a search on a GPU can return, and lists that it can look at.
_MOST = 2_048
# Scratch memory of an index on the GPU; faiss would take a gigabyte and a half.
_SCRATCH_BYTES = 256 << 20


class NoGpuError(Exception):
    """What cannot go to a GPU; the message says why."""


class GpuIndex:
    """A copy of a faiss index on the first GPU.

    Raises:
        NoGpuError: If there is no GPU, no faiss that knows it, no form of the index for it, or too little memory.
    """

    def __init__(self, index: Any) -> None:
        self._resources = gpu_resources()  # its own: versions come and go while others search, and faiss locks nothing
        self._resources.setTempMemory(_SCRATCH_BYTES)
        try:
            self._index = faiss.index_cpu_to_gpu(self._resources, 0, index)
        except RuntimeError as error:
            raise NoGpuError(f"faiss cannot take it to the GPU: {reason(error)}") from None
        self._searching = threading.Lock()

    @staticmethod
    def can_search(top_b: int, lists: int) -> bool:
        """Whether a search for so many keys in so many lists is within what GPUs can do."""
        return max(top_b, lists) <= _MOST

    def search(
        self, vectors: Float[np.ndarray, "query dim"], top_b: int, parameters: Any
    ) -> tuple[Float[np.ndarray, "query top_b"], Int[np.ndarray, "query top_b"]]:
        with self._searching:
            found: tuple[np.ndarray, np.ndarray] = self._index.search(vectors, top_b, params=parameters)
        return found


def gpu_resources() -> Any:
    """Faiss's hold on the first GPU, for one user at a time.

    Raises:
        NoGpuError: If faiss sees no GPU.
    """
    if not hasattr(faiss, "StandardGpuResources"):
        raise NoGpuError("this faiss is built without GPUs; pip install 'recollect[serve-gpu]' in place of faiss-cpu")
    if faiss.get_num_gpus() == 0:
        raise NoGpuError("faiss finds no GPU")
    return faiss.StandardGpuResources()


def reason(error: Exception) -> str:
    """What faiss says, without where in its sources it says so."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", str(error).strip().splitlines()[-1])
