"""The memory check: training starts only if its weights fit into memory, and keeps as many autograd graphs as fit."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from recollect.trainer.errors import TrainingError
from recollect.trainer.randomness import random_state, restore_random_state
from recollect.trainer.training.gradient_cache import Embedder, Part

# Number of arrays with the size of a weight: the weight, its gradient, the gradient of the next micro-batch, AdamW's
# two moments, and the update.
_COPIES = 6

# Number of tokens whose autograd graphs are kept at once on a CPU.
_TOKENS_ON_CPU = 16_384
# Share of a GPU's free memory for autograd graphs. The rest is for AdamW's moments, the loss, and a reserve.
_GRAPH_SHARE = 0.5

# Files of a memory control group: its limits, its usage, and its file pages in `memory.stat`.
_GroupFiles: TypeAlias = tuple[tuple[str, ...], str, tuple[str, ...]]
_CGROUP_V2: _GroupFiles = ("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file")
_CGROUP_V1: _GroupFiles = (
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)


def require_memory(module: nn.Module, name: str, device: str) -> None:
    """Refuse to train a module for which too little memory is free.

    Args:
        module: The module, on the `meta` device, where it takes no memory.
        name: The name of the module in the error message.
        device: Device of the training.

    Raises:
        TrainingError: If weights, gradients and AdamW's moments need more than the free memory.
    """
    needed = training_bytes(module)
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else free_bytes()
    if needed > free:
        raise TrainingError(
            f"{name}: expected {_size(needed)} of free memory for weights, gradients and moments, found "
            f"{_size(free)}; choose another --method, or a machine with more memory"
        )


def training_bytes(module: nn.Module) -> int:
    """Return the size of a module's weights with gradients and AdamW's moments, and of its buffers."""
    trained = sum(weight.numel() * weight.element_size() for weight in module.parameters())
    return _COPIES * trained + sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())


def kept_tokens(embedder: Embedder, part: Part) -> int:
    """Return the number of tokens, padding included, whose autograd graphs can be kept at once.

    On a GPU, the function runs the model on one micro-batch of `part` and measures the memory of its graph. Random
    states and weights stay unchanged.
    """
    if embedder.device == "cpu":
        return _TOKENS_ON_CPU
    places = next(part.micro_batches(embedder.micro_tokens, embedder.micro_rows))
    lengths = part.inputs.lengths_of(part.rows[places])
    state = random_state(embedder.device)
    embedder.views(part, places)  # at its first call, cuBLAS allocates memory of its own and keeps it
    before = torch.cuda.memory_allocated()
    graph = embedder.views(part, places)
    graph_bytes = torch.cuda.memory_allocated() - before
    del graph
    restore_random_state(state)
    # Memory that torch has reserved but does not use counts as free too.
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(_GRAPH_SHARE * free / graph_bytes * len(places) * lengths.max())


@contextlib.contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Replace torch's error by one line that names the flags to change.

    Raises:
        TrainingError: If the GPU's memory does not suffice.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).split(" GPU ")[0].rstrip(". ")  # the other lines are advice for authors of torch programs
        raise TrainingError(
            f"--device cuda: expected enough memory on the GPU, found too little ({reason}); lower --micro-batch or "
            "--batch-size, or cut texts shorter with --max-length"
        ) from None


def trim_heap() -> None:
    """Return free heap memory to the operating system, if the C library is glibc.

    Steps of different sizes fragment the heap. Without this call, a training of a classifier with 12,493 labels needed
    some megabytes more after every step. Allocating blocks outside the heap (`mallopt`) would take a fifth more time.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def free_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate without swapping: the smallest of these numbers.

        machine     MemAvailable
        cgroup v2   min(memory.max, memory.high) - memory.current + active_file + inactive_file
        cgroup v1   limit_in_bytes - usage_in_bytes + total_active_file + total_inactive_file

    The limits of the process's own control group and of every group above it apply. The kernel drops file pages when
    memory is short, so they count as free. The counter `file` would be too large: it includes tmpfs and shared memory,
    which cannot be dropped without swap. `inactive_file` alone would be too small: a file that was read twice is in
    `active_file`, and its pages can be dropped too.

    Args:
        root: Folder that contains `proc` and `sys`.
    """
    machine = _read_numbers(root / "proc/meminfo").get("MemAvailable:")
    free = [] if machine is None else [machine * 1024]
    free += _free_in_groups(root)
    return max(0, min(free, default=os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group that contains this process and has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, (limits, usage, pages) = root / "sys/fs/cgroup", _CGROUP_V2
        elif "memory" in controllers.split(","):
            mount, (limits, usage, pages) = root / "sys/fs/cgroup/memory", _CGROUP_V1
        else:
            continue
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            # A container may not see its own group under this path: folders that do not exist are skipped.
            found = [limit for name in limits if (limit := _read_number(folder / name)) is not None]
            used, stat = _read_number(folder / usage), _read_numbers(folder / "memory.stat")
            if found and used is not None:
                yield min(found) - used + sum(stat.get(name, 0) for name in pages)


def _read_number(path: Path) -> int | None:
    """Read the number in a kernel file. None if the file does not exist or holds the word `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_numbers(path: Path) -> dict[str, int]:
    """Read the numbers in a kernel file with lines `name number`. A file that does not exist has no numbers."""
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdigit()}


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
