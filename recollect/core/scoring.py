"""Scoring: the retrieved keys vote for labels, weighted by their similarity to the query (RAE-XMC, Eq. 5 and 7).

    p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I]

The softmax is over the b retrieved keys. The cost grows with b and with the number of labels of each key, not with the
number of all labels. The loops are in `recollect/core/kernels.py`.

Keys whose texts share rare words with the query can vote in addition to the nearest keys:

    score = (1 - w) p + w p_words,    p_words = softmax(3 ln s) [lambda Y; (1 - lambda) I]

s are the similarities by words, so the weight of such a key is proportional to s^3, and to its count. p_words uses the
same lambda, and the same votes of each key. w is the option `word_weight`. If no key shares a word with the query, the
score is p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core import kernels
from recollect.core.bundle.values import Values
from recollect.core.neighbours import Found, Neighbours
from recollect.core.options import Voting

_ALL_LABELS = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True)
class WeightedKeys:
    """The keys that vote for each query, and their weights; a missing key is -1.

    Attributes:
        weights: The weights; those of a query sum to 1.
        by_words: Number of last columns whose keys were found by words, not by their vectors.
    """

    keys: Int[np.ndarray, "query key"]
    weights: Float[np.ndarray, "query key"]
    by_words: int = 0

    def voters(
        self, query: int, labels: Int[np.ndarray, " wanted"], values: Values
    ) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
        """The votes of a query's keys for some labels: the place in `labels`, and the column of the key."""
        return kernels.find_voters(self.keys[query], values.arrays, labels)


@dataclass(frozen=True)
class ScoredLabels:
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
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def where(self, kept: Bool[np.ndarray, " row"]) -> ScoredLabels:
        """Some of the rows, in the same order."""
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        return ScoredLabels(
            offsets, self.label[kept], self.score[kept], None if self.logit is None else self.logit[kept]
        )

    def reordered(self, order: Int[np.ndarray, " row"]) -> ScoredLabels:
        """The rows in another order, in which those of a query stay together."""
        logit = None if self.logit is None else self.logit[order]
        return ScoredLabels(self.offsets, self.label[order], self.score[order], logit)

    def best(self, limit: int | None = None) -> ScoredLabels:
        """The rows of each query by falling score, then by label position: at most `limit`, or all of them."""
        nothing = np.zeros(len(self.offsets), dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0)
        limit = limit or len(self.label)
        offsets, label, score, _ = kernels.order_labels(self.offsets, self.label, self.score, *nothing, limit)
        return ScoredLabels(offsets, label, score)


class Votes(NamedTuple):
    """The keys that vote for each query, and the scores of the labels, in no particular order."""

    keys: WeightedKeys
    scores: ScoredLabels


def vote(found: Found, how: Voting, values: Values, admits: Bool[np.ndarray, " label"] | None = None) -> Votes:
    """Let the found keys vote for their labels, or for the admitted ones (RAE-XMC, Eq. 5 and 7)."""
    keys = weigh(found, how, values)
    return Votes(keys, score_labels(keys, how.lambda_, values, admits))


def weigh(found: Found, how: Voting, values: Values) -> WeightedKeys:
    """The keys that vote, and their weights (RAE-XMC, Eq. 5)."""
    by_words = found.nearest_by_words(how.lambda_, values.instances) if how.word_weight else None

    def weigh_kinds(lambda_: float) -> WeightedKeys:
        nearest = found.nearest(how.top_b, lambda_, values.instances)
        return weigh_keys(nearest, how.temperature, values, by_words, how.word_weight)

    if not how.separate or how.lambda_ in (0, 1):
        return weigh_kinds(how.lambda_)
    instances, labels = weigh_kinds(1.0), weigh_kinds(0.0)
    own = labels.keys.shape[1] - labels.by_words  # the keys by words vote once
    return WeightedKeys(
        keys=np.concatenate([instances.keys, labels.keys[:, :own]], axis=1),
        weights=np.concatenate([instances.weights, labels.weights[:, :own]], axis=1),
    )


def weigh_keys(
    nearest: Neighbours,
    temperature: float,
    values: Values | None,
    by_words: Neighbours | None = None,
    word_weight: float = 0.0,
) -> WeightedKeys:
    """Weigh each retrieved key by its similarity to the query: one softmax over the retrieved keys (RAE-XMC, Eq. 5).

    A key with count n weighs as much as n equal keys.

    Args:
        values: The counts of the keys; None: every count is 1.
        word_weight: The sum of their weights, for a query that has some of them.

    Raises:
        ValueError: If `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, found {temperature}")
    words = by_words if by_words is not None and word_weight else Neighbours(*(part[:, :0] for part in nearest.arrays))
    mapped, counts = (0, np.empty(0)) if values is None else (len(values.bundle_values), values.live_log_counts)
    found = kernels.weigh_keys(*nearest.arrays, temperature, *words.arrays, word_weight, mapped, counts)
    return WeightedKeys(*found, by_words=words.keys.shape[1])


def score_labels(
    weighted: WeightedKeys, lambda_: float, values: Values, admits: Bool[np.ndarray, " label"] | None = None
) -> ScoredLabels:
    """Sum the votes for each label, or each admitted one, in no particular order (RAE-XMC, Eq. 7)."""
    admitted = _ALL_LABELS if admits is None else admits
    return ScoredLabels(*kernels.sum_votes(weighted.keys, weighted.weights, lambda_, values.arrays, admitted))
