"""One step's loss and its gradient: a method's loss over a batch's queries and pool, block by block, on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from trainer.batches import Batch, Pairs
from trainer.gradient_cache import Embedder, Part
from trainer.methods import Method, Options, Scored, ScoredLabels
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
        options: What else the method was told.
        temperature: Tau; 1 for a method that has none.
        embedder: The model that learns.
        queries: Inputs of all instances.
        labels: Inputs of all labels.
        ranks: The processes that share each step.
    """

    method: Method
    options: Options
    temperature: float
    embedder: Embedder
    queries: Inputs
    labels: Inputs
    ranks: Ranks

    def backward(self, batch: Batch) -> float:
        """Add the gradient of the batch's mean loss to the model's, summed over the ranks.

        Returns:
            The loss: its mean over the queries that have a positive and, where labels are asked too, over the labels
            that have one.
        """
        labels = self.labels.excluding(batch.rows)
        parts = [Part(self.queries, self.ranks.share(batch.rows)), Part(labels, self.ranks.share(batch.pool))]
        head, pass_ = self.embedder.model.head, _Pass(self, batch)
        if head is not None:
            head.leave_out(batch)
        loss = self.embedder.backward(parts, lambda leaves: pass_.backward(*leaves))
        self.ranks.add_gradients(self.embedder.model)
        if head is not None:
            head.follow(batch, pass_.queries[:, 0])
        return loss


class _Pass:
    """One way through a batch: all queries meet this rank's part of the pool, and what they learn is added up.

    A loss back-propagates to the similarities of a block, s = q k / tau, and from there ds/dk = q / tau is added up in
    place: autograd would make a gradient as large as all keys for every block.
    """

    def __init__(self, objective: Objective, batch: Batch) -> None:
        self._method, self._options, self._ranks = objective.method, objective.options, objective.ranks
        self._temperature = objective.temperature
        self._batch = batch
        self._positives = batch.relevant if self._method.pulls_pool else batch.positives
        self._pool = self._ranks.bounds(len(batch.pool))

    def backward(self, own: Float[Tensor, "own _ dim"], keys: Float[Tensor, "key view dim"]) -> float:
        """Back-propagate to this rank's queries and labels."""
        count, views = len(self._batch.rows), keys.shape[1]
        self.queries = self._ranks.join(own.detach(), count)
        self._asked, self._own, self._keys = self.queries / self._temperature, own.detach(), keys.detach()
        self._gradient, self._own_gradient, self._key_gradient = (
            torch.zeros_like(part) for part in (self.queries, own, keys)
        )
        total = torch.zeros((), device=own.device)
        learning = _how_many(self._positives.query)  # queries without a positive teach nothing
        for queries in self._blocks(count, views * len(self._batch.pool) + (count if self._method.instances else 0)):
            total += self._ask_labels(queries, learning)
        if self._method.label_loss is not None and self._options.symmetric:
            learning = _how_many(self._positives.key)
            for labels in self._blocks(len(keys), views * count * self._ranks.size):
                total += self._ask_queries(labels, learning)
        own.grad = self._own_gradient + self._ranks.sum(self._gradient)[slice(*self._ranks.bounds(count))]
        keys.grad = self._key_gradient
        return float(self._ranks.sum(total))

    def _blocks(self, rows: int, columns: int) -> Iterator[slice]:
        """Rows in blocks, as many on every rank, since all have a part in each block's loss."""
        share = -(-columns // self._ranks.size)
        block = max(1, self._own.shape[-1] // _HELD, _BLOCK_SCORES[self._own.device.type] // max(1, share))
        for start in range(0, rows, block):
            yield slice(start, min(start + block, rows))

    def _ask_labels(self, queries: slice, learning: int) -> Tensor:
        """Some queries against this rank's labels, and its instances where the method has them for keys."""
        span, asked = (queries.start, queries.stop), self._asked[queries]
        own = self._own if self._method.instances else self._own[:0]
        scored = Scored(
            labels=_similarities(asked, self._keys),
            positives=self._mask(self._positives, span),
            relevant=self._mask(self._batch.relevant, span),
            instances=(asked[:, 0] @ own[:, 0].T).requires_grad_(),
            strangers=self._strangers(span),
            ranks=self._ranks,
            options=self._options,
        )
        loss = self._method.loss(scored).sum() / learning
        loss.backward()  # type: ignore[no-untyped-call]
        if scored.labels.grad is not None:
            self._descend(scored.labels.grad, queries, slice(None))
        if scored.instances.grad is not None:
            self._gradient[queries, 0].addmm_(scored.instances.grad, own[:, 0], alpha=1 / self._temperature)
            self._own_gradient[:, 0].addmm_(scored.instances.grad.T, asked[:, 0])
        return loss.detach()

    def _ask_queries(self, labels: slice, learning: int) -> Tensor:
        """Some of this rank's labels against all queries, which every rank has."""
        assert self._method.label_loss is not None
        span = (self._pool[0] + labels.start, self._pool[0] + labels.stop)
        scored = ScoredLabels(
            queries=_similarities(self._asked, self._keys[labels]).transpose(1, 2).detach().requires_grad_(),
            positives=self._mask(self._positives, (0, len(self._asked)), span).T,
            relevant=self._mask(self._batch.relevant, (0, len(self._asked)), span).T,
            options=self._options,
        )
        loss = self._method.label_loss(scored).sum() / learning
        loss.backward()  # type: ignore[no-untyped-call]
        if scored.queries.grad is not None:
            self._descend(scored.queries.grad.transpose(1, 2), slice(None), labels)
        return loss.detach()

    def _descend(self, gradient: Float[Tensor, "view query key"], queries: slice, labels: slice) -> None:
        """From similarities to both sides: dq = ds k / tau, dk = ds q / tau."""
        for view, its in enumerate(gradient):
            asked = min(view, self._asked.shape[1] - 1)
            self._gradient[queries, asked].addmm_(its, self._keys[labels, view], alpha=1 / self._temperature)
            self._key_gradient[labels, view].addmm_(its.T, self._asked[queries, asked])

    def _mask(self, pairs: Pairs, queries: tuple[int, int], labels: tuple[int, int] | None = None) -> Tensor:
        return pairs.mask(queries, labels or self._pool, self._own.device)

    def _strangers(self, queries: tuple[int, int]) -> Tensor:
        if not self._method.instances:
            return torch.zeros((queries[1] - queries[0], 0), dtype=torch.bool, device=self._own.device)
        strangers = self._batch.strangers(queries, self._ranks.bounds(len(self._batch.rows)))
        return torch.from_numpy(strangers).to(self._own.device)


def _similarities(
    queries: Float[Tensor, "query _ dim"], keys: Float[Tensor, "key view dim"]
) -> Float[Tensor, "view query key"]:
    """Each view of the labels with the queries' view of its number, or their only one; leaves of a graph."""
    return (queries.transpose(0, 1) @ keys.permute(1, 2, 0)).requires_grad_()


def _how_many(rows: np.ndarray) -> int:
    return max(1, len(np.unique(rows)))
