"""The gradient of a loss over a pool of any size, in the memory of one micro-batch.

DEXML, appendix B.5 (after Gao et al., 2021): encode in micro-batches without a graph, keeping the random states; take
the loss's gradient on the vectors; encode each micro-batch again, with a graph and the same dropout, and push its
vectors' gradient through. What stays in memory is a vector and a gradient a row, and a micro-batch's random state: some
kilobytes on a CPU, some bytes more on a GPU. What the loss itself holds comes on top (`trainer.objective`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from trainer.heads.head import Refinement
from trainer.randomness import RandomState, random_state, restore
from trainer.tokens import Inputs, batches_by_length


@dataclass(frozen=True)
class Part:
    """Rows of one side, queries or labels, that a step embeds.

    Attributes:
        inputs: All rows of that side.
        rows: Those to embed.
    """

    inputs: Inputs
    rows: Int[np.ndarray, " row"]

    def micro_batches(self, tokens: int, rows: int) -> Iterator[Int[np.ndarray, " micro"]]:
        """Places in `rows`, cut by like length."""
        return batches_by_length(self.inputs.lengths_of(self.rows), tokens, rows)


@dataclass(frozen=True)
class Embedder:
    """How a model turns rows into vectors while it learns.

    Attributes:
        model: Its views are learnt; they take what `Inputs.batch` gives.
        device: Where it is.
        autocast: bfloat16 in the matrix products.
        micro_tokens: Tokens, padding included, that go through the model at once.
        micro_rows: Rows that go through it at once.
        cache: Recompute each micro-batch's graph instead of keeping them all.
    """

    model: Refinement
    device: str
    autocast: bool
    micro_tokens: int
    micro_rows: int
    cache: bool

    def views(self, part: Part, places: Int[np.ndarray, " micro"]) -> Float[Tensor, "micro view dim"]:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            views = self.model.views(*part.inputs.batch(part.rows[places], self.device))
        return views.float()

    def backward(self, parts: list[Part], loss: Callable[[list[Tensor]], float]) -> float:
        """Add the gradient of a loss over the parts' views to the model's.

        Args:
            parts: What to embed.
            loss: Takes the views of each part, "row view dim", as leaves of a graph; adds to their gradients and
                returns the loss.

        Returns:
            The loss.
        """
        chunks = [
            (n, places)
            for n, part in enumerate(parts)
            for places in part.micro_batches(self.micro_tokens, self.micro_rows)
        ]
        leaves = [torch.zeros(self._shape(part), device=self.device) for part in parts]
        # In one tensor: were each by itself, it would keep the memory around it from going back in one piece.
        states = {name: state.repeat(len(chunks), 1) for name, state in random_state(self.device).items()}
        graphs: list[Tensor] = []
        with torch.set_grad_enabled(not self.cache):
            for number, (n, places) in enumerate(chunks):
                if self.cache:
                    for name, state in random_state(self.device).items():
                        states[name][number] = state
                views = self.views(parts[n], places)
                leaves[n][places] = views.detach()
                if not self.cache:
                    graphs.append(views)
        value = loss([leaf.requires_grad_() for leaf in leaves])
        if self.cache:
            self._backward_again(parts, chunks, states, leaves)
        elif graphs:
            torch.autograd.backward(graphs, [_gradient(leaves[n])[places] for n, places in chunks])
        return value

    def _shape(self, part: Part) -> tuple[int, int, int]:
        return len(part.rows), self.model.view_count(part.inputs.side), self.model.dim

    def _backward_again(
        self, parts: list[Part], chunks: list[tuple[int, np.ndarray]], states: RandomState, leaves: list[Tensor]
    ) -> None:
        """Embed each micro-batch once more, with the dropout it had, and push its views' gradient through."""
        after = random_state(self.device)
        for number, (n, places) in enumerate(chunks):
            restore({name: state[number] for name, state in states.items()})
            self.views(parts[n], places).backward(_gradient(leaves[n])[places])  # type: ignore[no-untyped-call]
        restore(after)


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
