"""CPU time and memory of a process and all its descendants, and the name of the CPU, from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class Memory(NamedTuple):
    """Memory of a process and its descendants, in megabytes.

    Attributes:
        rss_mb: Resident pages. A page that several processes map counts once for each process.
        private_mb: Pages that only one process maps.
        shared_mb: Pages that several processes map. Each page counts once.
        anonymous_mb: Pages that no file backs, so the kernel cannot drop them.
    """

    rss_mb: float
    private_mb: float
    shared_mb: float
    anonymous_mb: float


def process_tree(process: int) -> list[int]:
    """The process ids of a process and its descendants."""
    found = [process]
    for parent in found:  # the list grows during the loop
        with contextlib.suppress(OSError):
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, children.read_text().split())
    return found


def cpu_seconds(process: int) -> float:
    """CPU time of a process and its descendants so far, including ended child processes."""
    return _seconds([Path(f"/proc/{each}/stat") for each in process_tree(process)], 4)


def main_thread_seconds(process: int) -> float:
    """CPU time of the main threads of a process and its descendants so far."""
    return _seconds([Path(f"/proc/{each}/task/{each}/stat") for each in process_tree(process)], 2)


def _seconds(files: list[Path], fields: int) -> float:
    """The sum of the first times in these files: user and system time, then the same of ended child processes."""
    ticks = 0
    for file in files:
        with contextlib.suppress(OSError):  # the process has ended
            ticks += sum(map(int, file.read_text().rpartition(")")[2].split()[11 : 11 + fields]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> Memory:
    """Current memory of a process and its descendants."""
    total: dict[str, int] = {}
    for each in process_tree(process):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()[1:]:
                name, _, kilobytes = line.partition(":")
                total[name] = total.get(name, 0) + int(kilobytes.split()[0])
    private = total["Private_Clean"] + total["Private_Dirty"]
    figures = (total["Rss"], private, total["Pss"] - private, total["Anonymous"])
    return Memory(*(round(kilobytes / 1024, 1) for kilobytes in figures))


def cpu_model() -> str:
    """The name of the machine's CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
