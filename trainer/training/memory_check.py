"""The memory check: training starts only if its weights fit into memory, and keeps as many autograd graphs as fit."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch
from torch import nn

from recollect.core.system.ram import free_bytes
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


def require_memory(module: nn.Module, name: str, device: str) -> None:
    """Refuse to train a module for which too little memory is free.

    Args:
        module: The module, on the `meta` device, where it takes no memory.

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
    tensors = [*module.parameters(), *module.buffers()]
    return sum((_COPIES if each.requires_grad else 1) * each.numel() * each.element_size() for each in tensors)


def kept_tokens(embedder: Embedder, part: Part) -> int:
    """Return the number of tokens, padding included, whose autograd graphs can be kept at once.

    On a GPU, the function runs the model on one micro-batch of `part` and measures the memory of its graph. Random
    states and weights stay unchanged.
    """
    if embedder.device == "cpu":
        return _TOKENS_ON_CPU
    places = next(embedder.micro_batches(part))
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


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
