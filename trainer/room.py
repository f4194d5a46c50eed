"""The machine's memory: whether what is to be trained fits into it, and that it stays whole while it trains."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

import torch
from torch import nn

from trainer.errors import TrainingError

# A weight, its gradient and the next micro-batch's to add to it, AdamW's two moments, and the step it takes.
_COPIES = 6


def check_room(module: nn.Module, what: str, device: str) -> None:
    """Refuse to train what the memory that is free does not hold.

    Args:
        module: On no device yet, so that it takes nothing.
        what: Its name, for the message.
        device: Where it is to be.

    Raises:
        TrainingError: With how much it needs: weights, gradients, AdamW's moments, and what is in the making.
    """
    learnt = sum(weight.numel() * weight.element_size() for weight in module.parameters())
    needed = _COPIES * learnt + sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else _free_bytes()
    if needed > free:
        raise TrainingError(
            f"{what} need {_size(needed)} to learn, weights, gradients and moments, expected no more than the "
            f"{_size(free)} that are free; choose another --method, or a machine with more memory"
        )


def trim_heap() -> None:
    """Give back what is free, where the C library is glibc.

    Steps of many sizes leave its heap in pieces that fit no later one: without this, training a classifier of 12,493
    labels took some MB more with every step. Blocks that never enter the heap (`mallopt`) would cost a fifth of the
    time.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _free_bytes() -> int:
    """What the machine, and the container that this process may live in, have to spare."""
    machine = _table("/proc/meminfo")
    spare = [machine["MemAvailable:"] * 1024] if "MemAvailable:" in machine else []
    limit, used = (_table(f"/sys/fs/cgroup/memory.{name}", "all").get("all") for name in ("max", "current"))
    if limit is not None and used is not None:
        cached = _table("/sys/fs/cgroup/memory.stat").get("inactive_file", 0)  # goes when it is asked to
        spare.append(limit - used + cached)
    return max(0, min(spare, default=os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def _table(path: str, name: str = "") -> dict[str, int]:
    """The numbers of a file of the kernel's by name, a line each; without names, the one number under `name`."""
    try:
        words = [f"{name} {line}".split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}
