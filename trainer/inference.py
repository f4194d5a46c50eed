"""RAE inference before there is a bundle: the memory answers its own held-out instances, for many settings at once.

    p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I]        over the b nearest keys (RAE-XMC, Eq. 4, 5 and 7)

Instances and labels are searched once, b keys of each; every lambda, tau and smaller b is answered from those two
lists, as the service would answer it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import sparse
from torch import Tensor

_BLOCK_QUERIES = 64
# Far below any difference that means something, far above rounding: what a place among the candidates weighs.
_HAIR = 1e-13


class Answering(NamedTuple):
    """One way to answer a query."""

    lambda_: float
    temperature: float
    top_b: int


@dataclass(frozen=True)
class Neighbours:
    """The nearest keys of one part of the memory, best first; similarity -inf where there is none."""

    similarities: Float[np.ndarray, "query found"]
    keys: Int[np.ndarray, "query found"]

    def __getitem__(self, queries: slice) -> Neighbours:
        return Neighbours(self.similarities[queries], self.keys[queries])


def answer(
    instances: Neighbours,
    labels: Neighbours,
    values: sparse.csr_matrix,
    settings: Sequence[Answering],
    depth: int,
) -> Iterator[tuple[Answering, Int[np.ndarray, "query depth"]]]:
    """The best labels of every query, for every setting; -1 where fewer have a vote.

    Args:
        instances: As many as the greatest b, or all there are.
        labels: Likewise.
        values: Y, "instance label".
        settings: Ways to answer; cheapest when those that differ in lambda alone stand side by side.
        depth: Labels to return.
    """
    predictions: dict[Answering, list[np.ndarray]] = {setting: [] for setting in settings}
    for start in range(0, len(labels.keys), _BLOCK_QUERIES):
        block = slice(start, start + _BLOCK_QUERIES)
        voting = _Block(instances[block], labels[block], values)
        for setting in predictions:
            predictions[setting].append(voting.best(setting, depth))
    for setting, blocks in predictions.items():
        yield setting, np.concatenate(blocks)


class _Block:
    """A few queries, and for each the labels that its nearest keys could vote for: its candidates.

    Votes are added up in one flat array, query after query, and ranked in a matrix with a row a query.
    """

    def __init__(self, instances: Neighbours, labels: Neighbours, values: sparse.csr_matrix) -> None:
        self._instances, self._labels = instances, labels
        queries, n_labels = len(labels.keys), values.shape[1]
        # Every vote an instance could cast: by which query, from which place in its list, for which label.
        found = np.isfinite(instances.similarities)
        query, place = np.nonzero(found)
        rows = values[instances.keys[found]]
        voter = np.repeat(np.arange(len(query)), np.diff(rows.indptr))
        self._voter = np.ravel_multi_index((query[voter], place[voter]), instances.keys.shape)
        own = np.repeat(np.arange(queries), labels.keys.shape[1])
        codes = np.concatenate([query[voter], own]) * np.int64(n_labels)
        codes += np.concatenate([rows.indices, labels.keys.ravel()])
        candidates, targets = np.unique(codes, return_inverse=True)
        self._targets, self._own_targets = targets[: len(voter)], targets[len(voter) :]
        self._row, label = np.divmod(candidates, n_labels)
        self._column = np.arange(len(candidates)) - np.searchsorted(self._row, self._row)
        self._shape = (queries, int(self._column.max(initial=0)) + 1)
        self._label_of = np.zeros(self._shape, dtype=np.int64)
        self._label_of[self._row, self._column] = label
        self._shares: dict[tuple[bool, bool], tuple[Tensor, Tensor]] = {}
        self._shared_at = (0.0, 0)

    def best(self, setting: Answering, depth: int) -> Int[np.ndarray, "query depth"]:
        instances, labels = self._shared(setting)
        scores = setting.lambda_ * instances + (1 - setting.lambda_) * labels
        top = scores.topk(min(depth, scores.shape[1]))
        best = np.full((len(scores), depth), -1, dtype=np.int64)
        named = np.take_along_axis(self._label_of, top.indices.numpy(), axis=1)
        best[:, : named.shape[1]] = np.where(top.values.numpy() > 0, named, -1)
        return best

    def _shared(self, setting: Answering) -> tuple[Tensor, Tensor]:
        """The weight that instances and labels give each candidate; lambda matters only where it is 0 or 1."""
        lambda_, temperature, top_b = setting
        if self._shared_at != (temperature, top_b):
            self._shares, self._shared_at = {}, (temperature, top_b)
        parts = (lambda_ != 0, lambda_ != 1)
        if parts not in self._shares:
            self._shares[parts] = self._share_out(temperature, top_b, *parts)
        return self._shares[parts]

    def _share_out(
        self, temperature: float, top_b: int, with_instances: bool, with_labels: bool
    ) -> tuple[Tensor, Tensor]:
        """Softmax over the joint top b of the parts that have a vote."""
        first = self._instances.similarities.astype(np.float64)
        second = self._labels.similarities.astype(np.float64)
        first[:, top_b if with_instances else 0 :] = -np.inf
        second[:, top_b if with_labels else 0 :] = -np.inf
        joint = np.concatenate([first, second], axis=1)
        beyond = np.argsort(-joint, axis=1, kind="stable")[:, top_b:]
        np.put_along_axis(joint, beyond, -np.inf, axis=1)
        weights = torch.softmax(torch.from_numpy(joint / temperature), dim=1).nan_to_num().numpy()
        by_instances = weights[:, : first.shape[1]].ravel()[self._voter]
        by_labels = weights[:, first.shape[1] :].ravel()
        return self._add_up(self._targets, by_instances), self._add_up(self._own_targets, by_labels)

    def _add_up(self, targets: Int[np.ndarray, " vote"], weights: Float[np.ndarray, " vote"]) -> Tensor:
        """The votes of each candidate; of two with equal votes, the label that comes first is a hair ahead."""
        votes = np.bincount(targets, weights=weights, minlength=len(self._row))
        scores = np.zeros(self._shape)
        scores[self._row, self._column] = np.where(votes > 0, votes - _HAIR * votes * self._column, 0)
        return torch.from_numpy(scores)
