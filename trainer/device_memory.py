"""The memory of the device: how much of it a step's graphs may take, and what to say where it does not suffice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from trainer.errors import TrainingError
from trainer.gradient_cache import Embedder, Part
from trainer.randomness import random_state, restore

_TOKENS_ON_CPU = 16_384
# Of what a GPU has free; the rest is for the optimizer's moments, for the loss, and for what nobody foresaw.
_SHARE = 0.5


def kept_tokens(embedder: Embedder, part: Part) -> int:
    """How many tokens' graphs may be kept at once, padding included.

    What one takes on a GPU is measured: a micro-batch of `part` goes through the model, and leaves no trace.
    """
    if embedder.device == "cpu":
        return _TOKENS_ON_CPU
    places = next(part.micro_batches(embedder.micro_tokens, embedder.micro_rows))
    lengths = part.inputs.lengths_of(part.rows[places])
    state = random_state(embedder.device)
    embedder.views(part, places)  # the first time, cuBLAS takes memory of its own, and keeps it
    before = torch.cuda.memory_allocated()
    graph = embedder.views(part, places)
    taken = torch.cuda.memory_allocated() - before
    del graph
    restore(state)
    # What torch has reserved and does not use is as free as what it has not.
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(_SHARE * free / taken * len(places) * lengths.max())


@contextlib.contextmanager
def told_when_full() -> Iterator[None]:
    """Say in one line that a GPU's memory did not suffice.

    Raises:
        TrainingError: In the place of torch's error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).split(" GPU ")[0].rstrip(". ")  # what follows is advice for whoever writes torch programs
        raise TrainingError(
            f"--device cuda: expected enough memory on the GPU, found too little ({reason}); lower --micro-batch or "
            "--batch-size, or cut texts shorter with --max-length"
        ) from None
