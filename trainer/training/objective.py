"""The loss and the gradient of one training step: the method's loss of a batch, in blocks of queries, on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from recollect.trainer.distributed import Ranks
from recollect.trainer.encoding.tokens import Inputs
from recollect.trainer.methods import Method, MethodOptions
from recollect.trainer.methods.scored import Scored
from recollect.trainer.training.batches import Batch, Pairs
from recollect.trainer.training.gradient_cache import Embedder, Part

# Number of similarities in memory at once, by device. This number determines how many queries form a block.
_BLOCK_SCORES = {"cpu": 1 << 19, "cuda": 1 << 25}
# How many numbers a loss keeps for each similarity: a block of dim / 8 queries needs as much memory as the keys'
# gradient.
_NUMBERS_PER_SCORE = 8


@dataclass(frozen=True)
class Objective:
    """The function that training minimises."""

    method: Method
    options: MethodOptions
    temperature: float
    embedder: Embedder
    queries: Inputs
    labels: Inputs
    ranks: Ranks

    def backward(self, batch: Batch) -> float:
        """Add the gradient of the batch's mean loss, summed over the ranks, to the gradient of the model.

        Returns:
            The mean loss of the queries that have a positive; with a symmetric method, plus the mean loss of the labels
            that have a positive.
        """
        model, parts = self.embedder.model, [Part(self.queries, self.ranks.share(batch.rows))]
        if model.table is None:
            pool = self.ranks.bounds(len(batch.pool))
            parts.append(Part(self.labels.excluding(batch.rows), batch.pool[slice(*pool)]))
        else:
            pool = model.table.find_own(batch.pool)
        head, step = model.head, _Step(self, batch, pool)
        loss = self.embedder.backward(parts, step.backward)
        tables = [] if head is None else head.label_tables()
        self.ranks.all_reduce_gradients(model, tables, batch.pool)
        if head is not None:
            head.follow(step.queries[:, 0], batch.positives.query, batch.pool[batch.positives.key])
        return loss


class _Step:
    """The loss of all queries of a batch over this rank's share of the pool, and its gradient on queries and keys.

    Autograd computes the gradient of the similarities of a block, s = q k / tau. From there the gradients of queries
    and keys are added in place, as ds/dk = q / tau: autograd would allocate a gradient of all keys for every block.
    """

    def __init__(self, objective: Objective, batch: Batch, pool: tuple[int, int]) -> None:
        self._head, self._numbers = objective.embedder.model.head, dict(objective.embedder.model.numbers.items())
        self._method, self._options, self._ranks = objective.method, objective.options, objective.ranks
        self._temperature = objective.temperature
        self._batch = batch
        self._positives = batch.relevant if self._method.pulls_pool else batch.positives
        self._pool = pool

    def backward(self, leaves: list[Float[Tensor, "_ _ _"]]) -> float:
        """Back-propagate to this rank's queries, and to its label texts or its vectors in the table of the head."""
        if len(leaves) > 1:
            return self._backward(*leaves)
        assert self._head is not None
        labels = torch.from_numpy(self._batch.pool[slice(*self._pool)]).to(leaves[0].device)
        views = self._head.table_views(labels)
        keys = views.detach().requires_grad_()
        loss = self._backward(leaves[0], keys)
        views.backward(keys.grad)  # type: ignore[no-untyped-call]
        return loss

    def _backward(self, own: Float[Tensor, "own _ dim"], keys: Float[Tensor, "key view dim"]) -> float:
        count, views = len(self._batch.rows), keys.shape[1]
        self.queries = self._ranks.all_gather(own.detach(), count)
        self._scaled, self._own, self._keys = self.queries / self._temperature, own.detach(), keys.detach()
        self._gradient, self._own_gradient, self._key_gradient = (
            torch.zeros_like(part) for part in (self.queries, own, keys)
        )
        total = torch.zeros((), device=own.device)
        with_positive = _count_distinct(self._positives.query)  # queries without a positive have no loss
        for queries in self._blocks(count, views * len(self._batch.pool) + (count if self._method.instances else 0)):
            total += self._query_loss(queries, with_positive)
        if self._method.label_loss is not None and getattr(self._options, "symmetric", True):
            with_positive = _count_distinct(self._positives.key)
            for labels in self._blocks(len(keys), views * count * self._ranks.size):
                total += self._label_loss(labels, with_positive)
        own.grad = self._own_gradient + self._ranks.all_reduce_sum(self._gradient)[slice(*self._ranks.bounds(count))]
        keys.grad = self._key_gradient
        return float(self._ranks.all_reduce_sum(total))

    def _blocks(self, rows: int, columns: int) -> Iterator[slice]:
        """Yield blocks of rows.

        All ranks have the same number of blocks, because every rank takes part in every block's loss.
        """
        share = -(-columns // self._ranks.size)
        block = max(1, self._own.shape[-1] // _NUMBERS_PER_SCORE, _BLOCK_SCORES[self._own.device.type] // max(1, share))
        for start in range(0, rows, block):
            yield slice(start, min(start + block, rows))

    def _query_loss(self, queries: slice, with_positive: int) -> Tensor:
        """Compare some queries with this rank's labels and, if the method uses them as keys, with its instances."""
        span, scaled = (queries.start, queries.stop), self._scaled[queries]
        own = self._own if self._method.instances else self._own[:0]
        scored = Scored(
            scores=_similarities(scaled, self._keys),
            positives=self._mask(self._positives, span),
            relevant=self._mask(self._batch.relevant, span),
            instances=(scaled[:, 0] @ own[:, 0].T).requires_grad_(),
            disjoint_instances=self._disjoint_instances(span),
            numbers=self._numbers,
            ranks=self._ranks,
        )
        loss = self._method.loss(scored, self._options).sum() / with_positive
        loss.backward()  # type: ignore[no-untyped-call]
        if scored.scores.grad is not None:
            self._add_gradients(scored.scores.grad, queries, slice(None))
        if scored.instances.grad is not None:
            self._gradient[queries, 0].addmm_(scored.instances.grad, own[:, 0], alpha=1 / self._temperature)
            self._own_gradient[:, 0].addmm_(scored.instances.grad.T, scaled[:, 0])
        return loss.detach()

    def _label_loss(self, labels: slice, with_positive: int) -> Tensor:
        """Compare some of this rank's labels with all queries, which every rank holds."""
        assert self._method.label_loss is not None
        span = (self._pool[0] + labels.start, self._pool[0] + labels.stop)
        none = torch.empty((labels.stop - labels.start, 0), device=self._own.device)
        scored = Scored(
            scores=_similarities(self._scaled, self._keys[labels]).transpose(1, 2).detach().requires_grad_(),
            positives=self._mask(self._positives, (0, len(self._scaled)), span).T,
            relevant=self._mask(self._batch.relevant, (0, len(self._scaled)), span).T,
            instances=none,
            disjoint_instances=none.bool(),
            numbers=self._numbers,
        )
        loss = self._method.label_loss(scored, self._options).sum() / with_positive
        loss.backward()  # type: ignore[no-untyped-call]
        if scored.scores.grad is not None:
            self._add_gradients(scored.scores.grad.transpose(1, 2), slice(None), labels)
        return loss.detach()

    def _add_gradients(self, gradient: Float[Tensor, "view query key"], queries: slice, labels: slice) -> None:
        """Add the gradients of queries and keys: dq = ds k / tau, dk = ds q / tau."""
        for label_view, of_view in enumerate(gradient):
            query_view = min(label_view, self._scaled.shape[1] - 1)
            self._gradient[queries, query_view].addmm_(
                of_view, self._keys[labels, label_view], alpha=1 / self._temperature
            )
            self._key_gradient[labels, label_view].addmm_(of_view.T, self._scaled[queries, query_view])

    def _mask(self, pairs: Pairs, queries: tuple[int, int], labels: tuple[int, int] | None = None) -> Tensor:
        return pairs.mask(queries, labels or self._pool, self._own.device)

    def _disjoint_instances(self, queries: tuple[int, int]) -> Tensor:
        if not self._method.instances:
            return torch.zeros((queries[1] - queries[0], 0), dtype=torch.bool, device=self._own.device)
        disjoint = self._batch.disjoint_instances(queries, self._ranks.bounds(len(self._batch.rows)))
        return torch.from_numpy(disjoint).to(self._own.device)


def _similarities(
    queries: Float[Tensor, "query _ dim"], keys: Float[Tensor, "key view dim"]
) -> Float[Tensor, "view query key"]:
    """Compare view number i of the labels with view number i of the queries, or with the queries' only view.

    The result is a leaf of a graph.
    """
    return (queries.transpose(0, 1) @ keys.permute(1, 2, 0)).requires_grad_()


def _count_distinct(rows: np.ndarray) -> int:
    return max(1, len(np.unique(rows)))
