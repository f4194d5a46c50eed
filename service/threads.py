"""The thread budget: encoder, search, tokenizer and event loop together use no more threads than there are cores.

A batch keeps one core busy: its encoder, search and tokenizer run on one thread. Libraries would start thread pools of
their own on top. The budget limits the pools through environment variables, which most libraries read only once, when
they load.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# One thread for each call; threads do not spin while they wait.
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
    """How workers and their threads share the cores.

    Attributes:
        cores: Cores that this process may use.
        workers: Processes that serve.
        threads: Batches that each worker runs at the same time.
    """

    cores: int
    workers: int
    threads: int

    @classmethod
    def of(cls, workers: int, threads: int) -> ThreadBudget:
        """Share the cores among the workers. If `threads` is 0, use as many threads as keep all cores busy."""
        cores = usable_cores()
        return cls(cores, workers, threads or max(1, cores // workers))

    @property
    def exceeded(self) -> bool:
        return self.workers * self.threads > max(self.cores, self.workers)

    def apply(self) -> dict[str, str]:
        """Set the libraries' variables, keep those that the user has set, and return the result."""
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        return {name: os.environ[name] for name in _VARIABLES}


def threads_or_cores(threads: int) -> int:
    """`threads`, or the number of usable cores if `threads` is 0."""
    return threads or usable_cores()


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may use: limited by its CPU affinity and by its container's quota; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """CPU quota of the control group in cores; None without a limit."""
    try:
        if (path := cgroup / "cpu.max").is_file():  # cgroup version 2
            limit, period = path.read_text().split()
        else:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        return int(limit) / int(period) if limit not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
