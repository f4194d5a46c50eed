"""The memory of this process that Linux counts as resident."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

_STATUS = Path("/proc/self/status")


class ProcessMemory(NamedTuple):
    """Sizes in bytes: memory of this process alone, and mapped files, whose pages processes share."""

    private: int
    mapped: int


def process_memory() -> ProcessMemory | None:
    """The memory of this process; None on a system without /proc."""
    sizes = {}
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssFile"):
                sizes[name] = int(value.removesuffix("kB")) * 1024
    return ProcessMemory(sizes["RssAnon"], sizes["RssFile"]) if len(sizes) == 2 else None
