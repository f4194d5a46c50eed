"""Where a training's time goes, and how much memory it takes."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path


class Stopwatch:
    """Adds up the seconds spent in named stretches of work: `with watch("mine"): ...`."""

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
        """Each stretch's share of all the time since the watch was made; `other` is what no stretch holds."""
        total = time.monotonic() - self._started
        shares = {name: seconds / total for name, seconds in self.seconds.items()}
        return shares | {"other": 1.0 - sum(shares.values())}


def peak_memory_bytes() -> int:
    """The most memory that this process has held so far, on the CPU's side."""
    with contextlib.suppress(OSError):  # of this program alone; what `getrusage` tells lives on from its parent's
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
