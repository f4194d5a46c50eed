"""Scoring: the retrieved keys vote for labels, weighted by their similarity to the query (RAE-XMC, Eq. 5 and 7).

    p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I]

The softmax is over the b retrieved keys. The cost grows with b and with the number of labels of each key, not with the
number of all labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.service.bundle.values import Values
from recollect.service.memory.corrections import Corrected
from recollect.service.predictor.searcher import Neighbours


@dataclass(frozen=True)
class Votes:
    """Votes for labels: for query `query[i]`, key `key[i]` adds `share[i]` to the score of label `label[i]`.

    `by_words[i]` is true if the key was found by words, not by its vector; None means that no key was.
    """

    query: Int[np.ndarray, " vote"]
    key: Int[np.ndarray, " vote"]
    label: Int[np.ndarray, " vote"]
    share: Float[np.ndarray, " vote"]
    by_words: Bool[np.ndarray, " vote"] | None = None

    def terms(self, query: int, label: int) -> Iterator[tuple[int, float, bool]]:
        """List the terms of one score: a key, its share, and whether the key was found by words.

        The votes must be sorted by `sort_votes`.
        """
        start, stop = np.searchsorted(self.query, [query, query + 1])
        first, last = start + np.searchsorted(self.label[start:stop], [label, label + 1])
        by_words = [False] * (last - first) if self.by_words is None else self.by_words[first:last].tolist()
        yield from zip(self.key[first:last].tolist(), self.share[first:last].tolist(), by_words, strict=True)

    def take(self, rows: Int[np.ndarray, " taken"] | Bool[np.ndarray, " vote"]) -> Votes:
        """Some of the votes, in the given order."""
        by_words = None if self.by_words is None else self.by_words[rows]
        return Votes(self.query[rows], self.key[rows], self.label[rows], self.share[rows], by_words)


@dataclass(frozen=True)
class Ranking:
    """Scored labels, sorted by query, then by falling score, then by label position.

    If a ranker has ordered the labels, each label has a logit, and falling logits come before falling scores in the
    order. The logit of a label that was no candidate of the ranker is -inf.
    """

    query: Int[np.ndarray, " row"]
    label: Int[np.ndarray, " row"]
    score: Float[np.ndarray, " row"]
    logit: Float[np.ndarray, " row"] | None = None


def key_weights(
    similarities: Float[np.ndarray, "query top_b"],
    temperature: float,
    log_counts: Float[np.ndarray, "query top_b"] | float = 0.0,
) -> Float[np.ndarray, "query top_b"]:
    """Weight each retrieved key by its similarity to the query: one softmax over the retrieved keys (RAE-XMC, Eq. 5).

    Args:
        similarities: Inner products of unit vectors, so in [-1, 1]; -inf for a missing key.
        temperature: Tau of the softmax.
        log_counts: The logarithm of each key's count: a key with count n weighs as much as n equal keys.

    Returns:
        Weights in float64 that sum to 1 for every query with at least one key.

    Raises:
        ValueError: If `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, found {temperature}")
    logits = similarities.astype(np.float64) / temperature + log_counts
    found = np.isfinite(logits)
    largest = logits.max(axis=1, keepdims=True, initial=np.finfo(np.float64).min, where=found)
    weights = np.exp(logits - largest)  # a missing key gets the weight 0
    normalised: np.ndarray = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return normalised


def cast_votes(neighbours: Neighbours, temperature: float, lambda_: float, values: Values) -> Votes:
    """Compute the votes.

    An instance gives lambda times its weight to each of its labels, a label key 1 - lambda times its weight to its
    label.
    """
    weights = key_weights(neighbours.similarities, temperature, values.log_counts_of(neighbours.keys))
    return votes_of(neighbours.keys, weights, lambda_, values)


def votes_of(
    keys: Int[np.ndarray, "query key"], weights: Float[np.ndarray, "query key"], lambda_: float, values: Values
) -> Votes:
    """The votes of keys with the given weights; the key -1 means no key."""
    query, slot = np.nonzero(keys >= 0)
    key, weight = keys[query, slot], weights[query, slot]
    is_label = key >= values.instances

    rows = key[~is_label]
    voter, labels = values.gather(rows)
    return Votes(
        query=np.concatenate([query[~is_label][voter], query[is_label]]),
        key=np.concatenate([rows[voter], key[is_label]]),
        label=np.concatenate([labels, key[is_label] - values.instances]),
        share=np.concatenate([lambda_ * weight[~is_label][voter], (1 - lambda_) * weight[is_label]]),
    )


def sort_votes(votes: Votes) -> Votes:
    """Sort votes by query, then by label, then by falling share."""
    return votes.take(np.lexsort((-votes.share, votes.label, votes.query)))


def rank(votes: Votes, values: Values) -> Ranking:
    """Sum the votes for each label of each query. Sort the labels by falling score, then by label position."""
    pair, index = np.unique(votes.query * np.int64(values.labels) + votes.label, return_inverse=True)
    score = np.bincount(index, weights=votes.share, minlength=len(pair)).astype(np.float64, copy=False)
    query, label = np.divmod(pair, values.labels)
    order = np.lexsort((-score, query))  # stable: equal scores stay sorted by label
    return Ranking(query[order], label[order], score[order])


def correct(ranking: Ranking, votes: Votes, corrected: Corrected, first_key: int) -> tuple[Ranking, Votes]:
    """Lower the scores of the labels that have corrections.

    A correction is one more vote with a negative share, so that the shares still add up to the score.

    Args:
        ranking: The labels that the votes rank.
        votes: The votes.
        corrected: The corrections, by the places of the labels in the ranking.
        first_key: The number that the first correction has as a key.
    """
    place = corrected.place
    if not len(place):
        return ranking, votes
    query, label, score = ranking.query[place], ranking.label[place], ranking.score.copy()
    share = -(1 - corrected.factor) * score[place]
    score[place] += share
    order = np.lexsort((ranking.label, -score, ranking.query))
    by_words = None if votes.by_words is None else np.append(votes.by_words, np.zeros(len(place), dtype=bool))
    return Ranking(ranking.query[order], ranking.label[order], score[order]), Votes(
        query=np.append(votes.query, query),
        key=np.append(votes.key, corrected.row + first_key),
        label=np.append(votes.label, label),
        share=np.append(votes.share, share),
        by_words=by_words,
    )
