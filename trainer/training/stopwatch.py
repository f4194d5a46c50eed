"""Time and peak memory of a training."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import torch

from recollect.service.memory_use import process_memory


class Stopwatch:
    """Measures the total time of each named activity: `with watch("mine"): ...`."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - start

    def shares(self) -> dict[str, float]:
        """The share of each activity in the time since the stopwatch was created; `other` is the rest."""
        total = time.monotonic() - self._started
        shares = {name: seconds / total for name, seconds in self.seconds.items()}
        return shares | {"other": 1.0 - sum(shares.values())}


def peak_memory_bytes() -> int:
    """Peak CPU memory of this process so far."""
    if (memory := process_memory()) is not None:  # the peak of `getrusage` includes the parent process
        return memory.peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # KiB on Linux


def peak_gpu_memory_bytes() -> int:
    """Peak of the memory that this process has allocated on its GPU so far; 0 without a GPU."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
