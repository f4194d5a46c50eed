"""RAE inference in the trainer: predictions for many values of lambda, tau and b from one search.

    p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I]        over the b nearest keys (RAE-XMC, Eq. 4, 5 and 7)

The caller searches the b nearest instances and the b nearest labels of each query. These two lists determine the
predictions for every lambda, every tau and every smaller b. The predictions equal the answers of the service.
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

from recollect.trainer.data.split import LabelSets

_BLOCK_QUERIES = 64
# Relative penalty for each place in the list of candidates, so that equal scores are ordered by label position. The
# penalty is far smaller than relevant differences of scores, and far larger than rounding errors.
_TIE_PENALTY = 1e-13


class InferenceSetting(NamedTuple):
    """One choice of lambda, tau and b."""

    lambda_: float
    temperature: float
    top_b: int


@dataclass(frozen=True)
class Neighbours:
    """The nearest instances or labels of each query, best first. Places without a key have similarity -inf."""

    similarities: Float[np.ndarray, "query found"]
    keys: Int[np.ndarray, "query found"]

    def __getitem__(self, queries: slice) -> Neighbours:
        return Neighbours(self.similarities[queries], self.keys[queries])


def predict(
    instances: Neighbours,
    labels: Neighbours,
    values: sparse.csr_matrix,
    settings: Sequence[InferenceSetting],
    depth: int,
    filtered: sparse.csr_matrix | None = None,
) -> Iterator[tuple[InferenceSetting, Int[np.ndarray, "query depth"]]]:
    """Yield the best labels of every query for every setting. -1 fills the list if fewer labels have votes.

    Args:
        instances: The nearest instances of each query: as many as the largest b, or all instances.
        labels: The nearest labels of each query: as many as the largest b, or all labels.
        values: The relevance matrix Y, with the axes (instance, label).
        settings: The settings. Put settings that differ only in lambda next to each other: they share most of the work.
        depth: Number of labels to return.
        filtered: The labels that are removed from each query's ranking, with the axes (query, label). Their keys keep
            their place among the nearest keys. None: no label is removed.
    """
    predictions: dict[InferenceSetting, list[np.ndarray]] = {setting: [] for setting in settings}
    for start in range(0, len(labels.keys), _BLOCK_QUERIES):
        block = slice(start, start + _BLOCK_QUERIES)
        votes = _BlockVotes(instances[block], labels[block], values, None if filtered is None else filtered[block])
        for setting in predictions:
            predictions[setting].append(votes.best(setting, depth))
    for setting, blocks in predictions.items():
        yield setting, np.concatenate(blocks)


class _BlockVotes:
    """The votes of a block of queries. A vote is the weight that a key gives to a label.

    The candidates of a query are the labels that its nearest keys can vote for. Votes are summed in a flat array, query
    by query, and ranked in a matrix with one row for each query.
    """

    def __init__(
        self,
        instances: Neighbours,
        labels: Neighbours,
        values: sparse.csr_matrix,
        filtered: sparse.csr_matrix | None,
    ) -> None:
        self._instances, self._labels = instances, labels
        queries, n_labels = len(labels.keys), values.shape[1]
        # All possible votes of instances: the query, the rank of the instance in the query's list, and the label.
        found = np.isfinite(instances.similarities)
        query, rank = np.nonzero(found)
        rows = values[instances.keys[found]]
        voter = np.repeat(np.arange(len(query)), np.diff(rows.indptr))
        self._voter = np.ravel_multi_index((query[voter], rank[voter]), instances.keys.shape)
        label_query = np.repeat(np.arange(queries), labels.keys.shape[1])
        codes = np.concatenate([query[voter], label_query]) * np.int64(n_labels)
        codes += np.concatenate([rows.indices, labels.keys.ravel()])
        candidates, targets = np.unique(codes, return_inverse=True)
        self._instance_targets, self._label_targets = targets[: len(voter)], targets[len(voter) :]
        self._row, label = np.divmod(candidates, n_labels)
        self._removed = np.zeros(len(candidates), dtype=bool)
        if filtered is not None:
            self._removed = np.isin(candidates, LabelSets.of(filtered).codes(n_labels))
        self._column = np.arange(len(candidates)) - np.searchsorted(self._row, self._row)
        self._shape = (queries, int(self._column.max(initial=0)) + 1)
        self._label_of = np.zeros(self._shape, dtype=np.int64)
        self._label_of[self._row, self._column] = label
        self._cache: dict[tuple[bool, bool], tuple[Tensor, Tensor]] = {}  # for the latest tau and b
        self._cached_for = (0.0, 0)

    def best(self, setting: InferenceSetting, depth: int) -> Int[np.ndarray, "query depth"]:
        instances, labels = self._scores(setting)
        scores = setting.lambda_ * instances + (1 - setting.lambda_) * labels
        top = scores.topk(min(depth, scores.shape[1]))
        best = np.full((len(scores), depth), -1, dtype=np.int64)
        ranked = np.take_along_axis(self._label_of, top.indices.numpy(), axis=1)
        best[:, : ranked.shape[1]] = np.where(top.values.numpy() > 0, ranked, -1)
        return best

    def _scores(self, setting: InferenceSetting) -> tuple[Tensor, Tensor]:
        """The score of each candidate from instances and from labels, before lambda.

        With lambda 0, the b keys are all labels; with lambda 1, all instances. All other values of lambda give equal
        scores here.
        """
        lambda_, temperature, top_b = setting
        if self._cached_for != (temperature, top_b):
            self._cache, self._cached_for = {}, (temperature, top_b)
        parts = (lambda_ != 0, lambda_ != 1)
        if parts not in self._cache:
            self._cache[parts] = self._compute_scores(temperature, top_b, *parts)
        return self._cache[parts]

    def _compute_scores(
        self, temperature: float, top_b: int, with_instances: bool, with_labels: bool
    ) -> tuple[Tensor, Tensor]:
        """Apply the softmax to the b nearest keys of the chosen kinds, and sum the weights for each candidate."""
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
        return self._sum_votes(self._instance_targets, by_instances), self._sum_votes(self._label_targets, by_labels)

    def _sum_votes(self, targets: Int[np.ndarray, " vote"], weights: Float[np.ndarray, " vote"]) -> Tensor:
        """Sum the votes for each candidate.

        Among equal sums, the label with the lower position gets the higher score.
        """
        votes = np.bincount(targets, weights=weights, minlength=len(self._row))
        scores = np.zeros(self._shape)
        counted = (votes > 0) & ~self._removed
        scores[self._row, self._column] = np.where(counted, votes - _TIE_PENALTY * votes * self._column, 0)
        return torch.from_numpy(scores)
