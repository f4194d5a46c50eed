"""The thread budget: encoder, search, tokenizer and event loop together use at most one thread for each core.

Each batch of queries uses one core: encoder, search and tokenizer run on the same thread. Without limits, the libraries
would start their own thread pools in addition. The budget limits these thread pools through environment variables,
which most libraries read only once, when they load.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recollect.core.system.control_groups import control_groups, read_lines

# One thread for each call of a library. Waiting threads sleep instead of using CPU time.
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class ThreadBudget:
    """The number of workers for the available cores, and of batches that each computes at the same time (`threads`)."""

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


def usable_cores(root: Path = Path("/")) -> int:
    """The number of cores that CPU affinity and the quotas of the control groups allow to this process; at least 1."""
    quotas = (_quota(group, version) for group, version in control_groups(root, "cpu"))
    cores = min(len(os.sched_getaffinity(0)), *(quota for quota in quotas if quota is not None), math.inf)
    return max(1, int(cores))


def _quota(group: Path, version: Literal[1, 2]) -> float | None:
    """The CPU quota of a control group in cores; None if it has no limit or does not exist."""
    names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        limit, period = " ".join(line for name in names for line in read_lines(group / name)).split()
        return int(limit) / int(period) if limit not in ("max", "-1") else None
    except ValueError:
        return None
