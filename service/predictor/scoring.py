"""Scoring: the retrieved keys vote for labels, weighted by their similarity to the query (RAE-XMC, Eq. 5 and 7).

    p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I]

The softmax is over the b retrieved keys. The cost grows with b and with the number of labels of each key, not with the
number of all labels. The loops are in `service/loops.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.service import loops
from recollect.service.bundle.values import Values
from recollect.service.predictor.searcher import Neighbours

_ALL_LABELS = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True)
class WeightedKeys:
    """The keys that vote for each query, and their weights; a missing key is -1.

    Attributes:
        keys: The keys.
        weights: Their weights; those of a query sum to 1.
        by_words: Number of last columns whose keys were found by words, not by their vectors.
    """

    keys: Int[np.ndarray, "query key"]
    weights: Float[np.ndarray, "query key"]
    by_words: int = 0

    def mix(self, by_words: WeightedKeys, weight: float) -> WeightedKeys:
        """Add keys that were found by words. Each query that has some of them gives them `weight` together."""
        share = np.where((by_words.keys >= 0).any(axis=1), weight, 0.0)[:, None]
        return WeightedKeys(
            keys=np.concatenate([self.keys, by_words.keys], axis=1),
            weights=np.concatenate([(1 - share) * self.weights, share * by_words.weights], axis=1),
            by_words=by_words.keys.shape[1],
        )

    def voters(
        self, query: int, labels: Int[np.ndarray, " wanted"], values: Values
    ) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        """The votes of a query's keys for some labels: the place in `labels`, and the column of the key."""
        return loops.find_voters(self.keys[query], values.labels, *values.arrays, labels)


@dataclass(frozen=True)
class Ranking:
    """The labels of some queries with their scores: query i has the rows `offsets[i]` to `offsets[i + 1]`.

    `score_labels` gives the rows of a query in no particular order, `best` and the ranker give them best first. If the
    ranker has ordered them, each row has a logit: -inf for a label that was no candidate of the ranker.
    """

    offsets: Int[np.ndarray, " offset"]
    label: Int[np.ndarray, " row"]
    score: Float[np.ndarray, " row"]
    logit: Float[np.ndarray, " row"] | None = None

    @property
    def query(self) -> Int[np.ndarray, " row"]:
        """The query of each row."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def where(self, kept: Bool[np.ndarray, " row"]) -> Ranking:
        """Some of the rows, in the same order."""
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        return Ranking(offsets, self.label[kept], self.score[kept], None if self.logit is None else self.logit[kept])

    def best(self, most: int | None = None) -> Ranking:
        """The rows of each query by falling score, then by label position: at most `most`, or all of them."""
        offsets, rows = loops.best_rows(self.offsets, most or len(self.label), self.score, self.score, self.label)
        return Ranking(offsets, self.label[rows], self.score[rows])


def weigh_keys(neighbours: Neighbours, temperature: float, values: Values) -> WeightedKeys:
    """Weight each retrieved key by its similarity to the query: one softmax over the retrieved keys (RAE-XMC, Eq. 5).

    A key with count n weighs as much as n equal keys.

    Args:
        neighbours: The retrieved keys.
        temperature: Tau of the softmax.
        values: The counts of the keys.

    Raises:
        ValueError: If `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, found {temperature}")
    return weigh_logits(neighbours.keys, neighbours.similarities.astype(np.float64) / temperature, values)


def weigh_logits(
    keys: Int[np.ndarray, "query key"], logits: Float[np.ndarray, "query key"], values: Values
) -> WeightedKeys:
    """Weight each key by a softmax over the logits of its query, and by its count."""
    keys = np.ascontiguousarray(keys, dtype=np.int64)
    weights = loops.softmax(keys, np.ascontiguousarray(logits), len(values.mapped), values.live_log_counts)
    return WeightedKeys(keys, weights)


def score_labels(
    weighted: WeightedKeys, lambda_: float, values: Values, admits: Bool[np.ndarray, " label"] | None = None
) -> Ranking:
    """Sum the votes for each label, in no particular order (RAE-XMC, Eq. 7).

    An instance gives lambda times its weight to each of its labels, a label key 1 - lambda times its weight to its
    label.

    Args:
        weighted: The keys that vote.
        lambda_: Weight of instances against labels.
        values: The labels of the instances.
        admits: Whether a label may get votes; None admits all labels.
    """
    admitted = _ALL_LABELS if admits is None else admits
    return Ranking(*loops.sum_votes(weighted.keys, weighted.weights, lambda_, values.labels, *values.arrays, admitted))
