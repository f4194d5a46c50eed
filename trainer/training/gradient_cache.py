"""Gradient cache: the gradient of a loss over a pool of any size, in the memory of one micro-batch.

DEXML, appendix B.5 (after Gao et al., 2021): first encode all micro-batches without an autograd graph, and store their
random states. Then compute the gradient of the loss on the vectors. Then encode each micro-batch again, with a graph
and the same dropout, and back-propagate the gradient of its vectors. Memory holds a vector and a gradient for each row,
and a random state for each micro-batch: a few kilobytes. The loss itself needs additional memory
(`recollect.trainer.training.objective`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.trainer.encoding.tokens import Inputs, batches_by_length
from recollect.trainer.heads.dual_encoder import DualEncoder
from recollect.trainer.randomness import RandomState, random_state, restore_random_state


@dataclass(frozen=True)
class Part:
    """Rows of one side, queries or labels, that a step embeds."""

    inputs: Inputs
    rows: Int[np.ndarray, " row"]


@dataclass(frozen=True)
class Embedder:
    """How a model embeds rows in training.

    Attributes:
        cache: Whether each micro-batch is encoded twice, so that only one graph is in memory at a time.
    """

    model: DualEncoder
    device: str
    autocast: bool
    micro_tokens: int
    micro_rows: int
    cache: bool

    def micro_batches(self, part: Part) -> Iterator[Int[np.ndarray, " micro"]]:
        """Yield the micro-batches of a part, as places in `part.rows`. Their rows have similar lengths."""
        return batches_by_length(part.inputs.lengths_of(part.rows), self.micro_tokens, self.micro_rows, self.device)

    def views(self, part: Part, places: Int[np.ndarray, " micro"]) -> Float[Tensor, "micro view dim"]:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            views = self.model.views(*part.inputs.batch(part.rows[places], self.device))
        return views.float()

    def backward(self, parts: list[Part], loss: Callable[[list[Tensor]], float]) -> float:
        """Add the gradient of a loss over the views, the vectors of the parts' rows, to the gradient of the model.

        Args:
            loss: A function of the views of each part, whose axes are (row, view, dim). The views are leaves of an
                autograd graph. The function adds to their gradients and returns the loss.

        Returns:
            The loss.
        """
        chunks = [(n, places) for n, part in enumerate(parts) for places in self.micro_batches(part)]
        shapes = [(len(part.rows), self.model.view_count(part.inputs.side), self.model.view_dim) for part in parts]
        leaves = [torch.zeros(shape, device=self.device) for shape in shapes]
        # All views are in one tensor, because many small tensors would fragment the heap.
        states = {name: state.repeat(len(chunks), 1) for name, state in random_state(self.device).items()}
        graphs: list[tuple[Tensor, int, Int[np.ndarray, " micro"]]] = []
        with torch.set_grad_enabled(not self.cache):
            for number, (n, places) in enumerate(chunks):
                if self.cache:
                    for name, state in random_state(self.device).items():
                        states[name][number] = state
                views = self.views(parts[n], places)
                leaves[n][places] = views.detach()
                if views.requires_grad:  # a frozen encoder without a network above has no graph
                    graphs.append((views, n, places))
        loss_value = loss([leaf.requires_grad_() for leaf in leaves])
        if self.cache:
            self._backward_cached(parts, chunks, states, leaves)
        elif graphs:
            gradients = [_gradient(leaves[n])[places] for _, n, places in graphs]
            torch.autograd.backward([views for views, *_ in graphs], gradients)
        return loss_value

    def _backward_cached(
        self, parts: list[Part], chunks: list[tuple[int, np.ndarray]], states: RandomState, leaves: list[Tensor]
    ) -> None:
        """Embed each micro-batch again, with the same dropout, and back-propagate the gradient of its views."""
        after = random_state(self.device)
        for number, (n, places) in enumerate(chunks):
            restore_random_state({name: state[number] for name, state in states.items()})
            views = self.views(parts[n], places)
            if views.requires_grad:
                views.backward(_gradient(leaves[n])[places])  # type: ignore[no-untyped-call]
        restore_random_state(after)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
