"""The memory of this machine that is free, and the memory that this process uses, from the kernel's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from recollect.core.system.control_groups import control_groups, read_lines


class _GroupFiles(NamedTuple):
    """Names of the files of a memory control group, and names of its counters of file pages in `memory.stat`."""

    limits: tuple[str, ...]
    usage: str
    file_pages: tuple[str, ...]


# The files of each version of control groups.
_FILES = {
    1: _GroupFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
    2: _GroupFiles(("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file")),
}


class ProcessMemory(NamedTuple):
    """Sizes in bytes: memory of this process alone, mapped files, whose pages processes share, and the peak of both."""

    private: int
    mapped: int
    peak: int


def process_memory() -> ProcessMemory | None:
    """The resident memory of this process; None on a system without /proc."""
    sizes = _read_numbers(Path("/proc/self/status"))
    names = ("RssAnon:", "RssFile:", "VmHWM:")
    return ProcessMemory(*(sizes[name] * 1024 for name in names)) if sizes.keys() >= {*names} else None


def free_bytes(root: Path = Path("/")) -> int:
    """The number of bytes that this process can still allocate without swapping: the smallest of the following numbers.

        machine     MemAvailable
        cgroup v2   min(memory.max, memory.high) - memory.current + active_file + inactive_file
        cgroup v1   limit_in_bytes - usage_in_bytes + total_active_file + total_inactive_file

    The limits of the process's own control group apply, and the limits of all groups that contain this group. The
    kernel drops file pages when memory is short. The counter `file` would be too much: it includes tmpfs and shared
    memory, which the kernel cannot drop without swap. The counter `inactive_file` alone would be too little: the kernel
    can also drop the pages in `active_file`, which were read twice.
    """
    machine = _read_numbers(root / "proc/meminfo").get("MemAvailable:")
    free = [_free_in_group(group, _FILES[version]) for group, version in control_groups(root, "memory")]
    free.append(None if machine is None else machine * 1024)
    fallback = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min((size for size in free if size is not None), default=fallback))


def _free_in_group(group: Path, files: _GroupFiles) -> int | None:
    """The free bytes of one control group; None if it has no limit or does not exist."""
    limits = [limit for name in files.limits if (limit := _read_number(group / name)) is not None]
    used, stat = _read_number(group / files.usage), _read_numbers(group / "memory.stat")
    if not limits or used is None:
        return None
    return min(limits) - used + sum(stat.get(name, 0) for name in files.file_pages)


def _read_number(path: Path) -> int | None:
    """The number in a kernel file; None if the file does not exist or contains the word `max`."""
    lines = read_lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _read_numbers(path: Path) -> dict[str, int]:
    """The numbers in a kernel file whose lines have a name and a number each."""
    words = [line.split() for line in read_lines(path)]
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}
