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

# Similarities held at once; queries are taken in blocks of as many as fit.
_BLOCK_SCORES = 1 << 19


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
        parts = [Part(self.queries, self.ranks.share(batch.rows)), Part(self.labels, self.ranks.share(batch.pool))]
        loss = self.embedder.backward(parts, lambda leaves: self._loss(batch, *leaves))
        self.ranks.add_gradients(self.embedder.model)
        return loss

    def _loss(self, batch: Batch, own: Float[Tensor, "own dim"], keys: Float[Tensor, "key dim"]) -> float:
        """Back-propagate to this rank's queries and labels; all queries meet this rank's part of the pool."""
        count = len(batch.rows)
        queries = self.ranks.join(own.detach(), count).detach().requires_grad_()
        learning = max(1, len(np.unique(batch.positives.query)))  # queries without a positive teach nothing
        block = max(1, _BLOCK_SCORES // max(1, len(batch.pool) + count))
        total = torch.zeros((), device=own.device)
        for start in range(0, count, block):
            span = (start, min(start + block, count))
            losses = self.method.loss(self._score(batch, span, queries[slice(*span)], own, keys))
            loss = losses.sum() / learning
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        gradient = self.ranks.sum(queries.grad)  # type: ignore[arg-type]
        mine = gradient[slice(*self.ranks.bounds(count))]
        own.grad = mine if own.grad is None else own.grad + mine
        return float(self.ranks.sum(total))

    def _score(
        self,
        batch: Batch,
        span: tuple[int, int],
        queries: Float[Tensor, "query dim"],
        own: Float[Tensor, "own dim"],
        keys: Float[Tensor, "key dim"],
    ) -> Scored:
        pool, device = self.ranks.bounds(len(batch.pool)), queries.device
        if self.method.instances:
            strangers = batch.strangers(span, self.ranks.bounds(len(batch.rows)))
            instances = queries @ own.T / self.temperature
        else:
            strangers = np.zeros((len(queries), 0), dtype=bool)
            instances = queries.new_zeros((len(queries), 0))
        return Scored(
            labels=queries @ keys.T / self.temperature,
            positives=torch.from_numpy(batch.positives.mask(span, pool)).to(device),
            relevant=torch.from_numpy(batch.relevant.mask(span, pool)).to(device),
            instances=instances,
            strangers=torch.from_numpy(strangers).to(device),
            ranks=self.ranks,
        )
