"""The gradient of a loss over a pool of any size, in the memory of one micro-batch.

DEXML, appendix B.5 (after Gao et al., 2021): encode in micro-batches without a graph, keeping the random states; take
the loss's gradient on the vectors; encode each micro-batch again, with a graph and the same dropout, and push its
vectors' gradient through. What stays in memory is one vector and one gradient a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

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
        return batches_by_length(self.inputs.lengths[self.rows], tokens, rows)


@dataclass(frozen=True)
class Embedder:
    """How a model turns rows into vectors while it learns.

    Attributes:
        model: Takes what `Inputs.batch` gives.
        dim: Size of its vectors.
        device: Where it is.
        autocast: bfloat16 in the matrix products.
        micro_tokens: Tokens, padding included, that go through the model at once.
        micro_rows: Rows that go through it at once.
        cache: Recompute each micro-batch's graph instead of keeping them all.
    """

    model: nn.Module
    dim: int
    device: str
    autocast: bool
    micro_tokens: int
    micro_rows: int
    cache: bool

    def vectors(self, part: Part, places: Int[np.ndarray, " micro"]) -> Float[Tensor, "micro dim"]:
        with torch.autocast(self.device.partition(":")[0], torch.bfloat16, enabled=self.autocast):
            vectors: Tensor = self.model(*part.inputs.batch(part.rows[places], self.device))
        return vectors.float()

    def backward(self, parts: list[Part], loss: Callable[[list[Tensor]], float]) -> float:
        """Add the gradient of a loss over the parts' vectors to the model's.

        Args:
            parts: What to embed.
            loss: Takes the vectors of each part, "row dim", as leaves of a graph; adds to their gradients and returns
                the loss.

        Returns:
            The loss.
        """
        chunks = [(n, places) for n, part in enumerate(parts) for places in self._micro_batches(part)]
        states: list[RandomState] = []
        vectors: list[Tensor] = []
        with torch.set_grad_enabled(not self.cache):
            for n, places in chunks:
                if self.cache:
                    states.append(_random_state(self.device))
                vectors.append(self.vectors(parts[n], places))
        leaves = [self._assemble(n, chunks, vectors) for n in range(len(parts))]
        value = loss(leaves)
        gradients = [leaves[n].grad[places] for n, places in chunks]  # type: ignore[index]
        if not self.cache:
            if vectors:
                torch.autograd.backward(vectors, gradients)
            return value
        after = _random_state(self.device)
        for (n, places), state, gradient in zip(chunks, states, gradients, strict=True):
            _restore(state, self.device)
            self.vectors(parts[n], places).backward(gradient)  # type: ignore[no-untyped-call]
        _restore(after, self.device)
        return value

    def _micro_batches(self, part: Part) -> Iterator[Int[np.ndarray, " micro"]]:
        return part.micro_batches(self.micro_tokens, self.micro_rows)

    def _assemble(self, n: int, chunks: list[tuple[int, np.ndarray]], vectors: list[Tensor]) -> Tensor:
        """The vectors of part `n` in the order of its rows, as a leaf."""
        own = [(places, chunk) for (m, places), chunk in zip(chunks, vectors, strict=True) if m == n]
        if not own:  # a rank may have no share of a small pool
            return torch.zeros((0, self.dim), device=self.device, requires_grad=True)
        order = torch.from_numpy(np.argsort(np.concatenate([places for places, _ in own]), kind="stable"))
        joined = torch.cat([chunk.detach() for _, chunk in own])
        return joined[order.to(joined.device)].requires_grad_()


RandomState = tuple[Tensor, Tensor | None]


def _random_state(device: str) -> RandomState:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.startswith("cuda") else None


def _restore(state: RandomState, device: str) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
