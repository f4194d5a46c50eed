"""The thread budget: encoder, search, tokenizer and event loop together ask for no more cores than there are.

Each batch at work keeps one core busy: its encoder, its search and its tokenizer run on the thread that took it. The
libraries' own pools would multiply that, so they are told before they are loaded: most of them listen only once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# One thread a call, and none that spins while it waits.
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ThreadBudget:
    """Cores, and what shares them.

    Attributes:
        cores: Those this process may use.
        workers: Processes that serve.
        threads: Batches at work at once in each of them.
    """

    cores: int
    workers: int
    threads: int

    @classmethod
    def of(cls, workers: int, threads: int) -> ThreadBudget:
        """Share out the cores; `threads` 0: as many to each worker as keeps all cores busy."""
        cores = usable_cores()
        return cls(cores, workers, threads or max(1, cores // workers))

    @property
    def exceeded(self) -> bool:
        return self.workers * self.threads > max(self.cores, self.workers)

    def apply(self) -> dict[str, str]:
        """Tell the libraries, but for what the environment says already; what they are told."""
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        return {name: os.environ[name] for name in _VARIABLES}


def threads_or_cores(threads: int) -> int:
    """Threads asked for, or the cores that this process may use."""
    return threads or usable_cores()


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores this process may use: those it is bound to, or fewer where a container's quota says so; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Cores' worth of time that the control group admits; None if it sets no limit."""
    try:
        if (path := cgroup / "cpu.max").is_file():  # version 2
            limit, period = path.read_text().split()
        else:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        return int(limit) / int(period) if limit not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
