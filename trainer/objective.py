"""One step's loss and its gradient: a method's loss over a batch's queries and pool, block by block, on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trainer.batches import Batch
from trainer.gradient_cache import Embedder, Part
from trainer.methods import Method, Scored
from trainer.ranks import Ranks
from trainer.tokens import Inputs

# Similarities held at once, by device; queries are taken in blocks of as many as fit.
_BLOCK_SCORES = {"cpu": 1 << 19, "cuda": 1 << 25}
# What a loss holds of each similarity, in numbers: a block of dim / 8 queries is no larger than the keys' gradient.
_HELD = 8


@dataclass(frozen=True)
class Objective:
    """What training makes small.

    Attributes:
        method: Which pool, which loss.
        temperature: Tau.
        embedder: The model that learns.
        queries: Inputs of all instances.
        labels: Inputs of all labels.
        ranks: The processes that share each step.
    """

    method: Method
    temperature: float
    embedder: Embedder
    queries: Inputs
    labels: Inputs
    ranks: Ranks

    def backward(self, batch: Batch) -> float:
        """Add the gradient of the batch's mean loss to the model's, summed over the ranks.

        Returns:
            The loss, averaged over the queries that have a positive.
        """
        labels = self.labels.leaving_out(batch.rows)
        parts = [Part(self.queries, self.ranks.share(batch.rows)), Part(labels, self.ranks.share(batch.pool))]
        loss = self.embedder.backward(parts, lambda leaves: self._loss(batch, *leaves))
        self.ranks.add_gradients(self.embedder.model)
        return loss

    def _loss(self, batch: Batch, own: Float[Tensor, "own dim"], keys: Float[Tensor, "key dim"]) -> float:
        """Back-propagate to this rank's queries and labels; all queries meet this rank's part of the pool.

        The loss back-propagates to the similarities of a block, s = q k / tau, and from there ds/dk = q / tau is added
        up in place: autograd would make a gradient as large as all keys for every block.
        """
        count = len(batch.rows)
        queries = self.ranks.join(own.detach(), count) / self.temperature
        gradient, own_gradient, key_gradient = (torch.zeros_like(part) for part in (queries, own, keys))
        learning = max(1, len(np.unique(batch.positives.query)))  # queries without a positive teach nothing
        block, total = self._block(batch, own), torch.zeros((), device=own.device)
        for start in range(0, count, block):
            span = (start, min(start + block, count))
            asked = queries[slice(*span)]
            scored = self._score(batch, span, asked, own.detach(), keys.detach())
            loss = self.method.loss(scored).sum() / learning
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
            for scores, part, its_gradient in (
                (scored.labels, keys, key_gradient),
                (scored.instances, own, own_gradient),
            ):
                if scores.grad is not None:
                    gradient[slice(*span)].addmm_(scores.grad, part.detach(), alpha=1 / self.temperature)
                    its_gradient.addmm_(scores.grad.T, asked)
        own.grad = own_gradient + self.ranks.sum(gradient)[slice(*self.ranks.bounds(count))]
        keys.grad = key_gradient
        return float(self.ranks.sum(total))

    def _block(self, batch: Batch, own: Float[Tensor, "own dim"]) -> int:
        """Queries in a block: as many on every rank, since all have a part in each block's loss."""
        keys = len(batch.pool) + (len(batch.rows) if self.method.instances else 0)
        share = -(-keys // self.ranks.size)
        return max(1, own.shape[1] // _HELD, _BLOCK_SCORES[own.device.type] // max(1, share))

    def _score(
        self,
        batch: Batch,
        span: tuple[int, int],
        queries: Float[Tensor, "query dim"],
        own: Float[Tensor, "own dim"],
        keys: Float[Tensor, "key dim"],
    ) -> Scored:
        """What the loss reads; similarities are leaves of its graph. Queries come over tau."""
        pool, device = self.ranks.bounds(len(batch.pool)), queries.device
        if self.method.instances:
            strangers = torch.from_numpy(batch.strangers(span, self.ranks.bounds(len(batch.rows)))).to(device)
        else:
            own, strangers = own[:0], torch.zeros((len(queries), 0), dtype=torch.bool, device=device)
        return Scored(
            labels=(queries @ keys.T).requires_grad_(),
            positives=batch.positives.mask(span, pool, device),
            relevant=batch.relevant.mask(span, pool, device),
            instances=(queries @ own.T).requires_grad_(),
            strangers=strangers,
            ranks=self.ranks,
        )
