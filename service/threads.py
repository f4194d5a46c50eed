"""The thread budget: encoder, search, tokenizer and event loop together use at most one thread for each core.

Each batch of queries uses one core: encoder, search and tokenizer run on the same thread. Without limits, the libraries
would start their own thread pools in addition. The budget limits these thread pools through environment variables,
which most libraries read only once, when they load.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# One thread for each call of a library. Waiting threads sleep instead of using CPU time.
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
    """The number of workers and threads for the available cores.

    Attributes:
        cores: Number of cores that this process may use.
        workers: Number of worker processes.
        threads: Number of batches that each worker computes at the same time.
    """

    cores: int
    workers: int
    threads: int

    @classmethod
    def of(cls, workers: int, threads: int) -> ThreadBudget:
        """Divide the cores among the workers.

        If `threads` is 0, use as many threads as are needed to keep all cores busy.
        """
        cores = usable_cores()
        return cls(cores, workers, threads or max(1, cores // workers))

    @property
    def exceeded(self) -> bool:
        return self.workers * self.threads > max(self.cores, self.workers)

    def apply(self) -> dict[str, str]:
        """Set the environment variables of the libraries and return all their values.

        Variables that the user has set keep their values.
        """
        for name, value in _VARIABLES.items():
            os.environ.setdefault(name, value)
        return {name: os.environ[name] for name in _VARIABLES}


def threads_or_cores(threads: int) -> int:
    """Return `threads`, or the number of usable cores if `threads` is 0."""
    return threads or usable_cores()


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """The number of cores that CPU affinity and the quota of the container allow this process to use; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """The CPU quota of the process's control group in cores; None if there is no limit."""
    try:
        if (path := cgroup / "cpu.max").is_file():  # cgroup version 2
            limit, period = path.read_text().split()
        else:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        return int(limit) / int(period) if limit not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
