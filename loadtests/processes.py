"""CPU and memory of a process and all its descendants, as Linux tells them in /proc."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """Megabytes of a process and its descendants.

    Attributes:
        rss_mb: All resident pages; those that several processes map count in each.
        private_mb: Pages that one process alone maps.
        shared_mb: Pages that several map, counted once.
        anonymous_mb: Pages that no file backs: what no other process can use and nothing can drop.
    """

    rss_mb: float
    private_mb: float
    shared_mb: float
    anonymous_mb: float


def family(process: int) -> list[int]:
    """A process and its descendants."""
    found = [process]
    for parent in found:  # grows as it goes
        with contextlib.suppress(OSError):
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, children.read_text().split())
    return found


def cpu_seconds(process: int) -> float:
    """CPU time that a process and its descendants took so far, those that ended included."""
    ticks = 0
    for each in family(process):
        with contextlib.suppress(OSError):  # ended meanwhile
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> Memory:
    """Memory of a process and its descendants now."""
    total: dict[str, int] = {}
    for each in family(process):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()[1:]:
                name, _, kilobytes = line.partition(":")
                total[name] = total.get(name, 0) + int(kilobytes.split()[0])
    private = total["Private_Clean"] + total["Private_Dirty"]
    figures = (total["Rss"], private, total["Pss"] - private, total["Anonymous"])
    return Memory(*(round(kilobytes / 1024, 1) for kilobytes in figures))
