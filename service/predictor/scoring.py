"""Scoring: the retrieved keys vote for labels, weighted by their similarity to the query (RAE-XMC, Eq. 5 and 7).

    p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I]

The softmax is over the b retrieved keys. The cost grows with b and with the number of labels of each key, not with the
number of all labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from service.bundle.values import Values, gather_rows
from service.predictor.searcher import Neighbours


@dataclass(frozen=True)
class Votes:
    """Votes for labels: for query `query[i]`, key `key[i]` adds `share[i]` to the score of label `label[i]`."""

    query: Int[np.ndarray, " vote"]
    key: Int[np.ndarray, " vote"]
    label: Int[np.ndarray, " vote"]
    share: Float[np.ndarray, " vote"]

    def terms(self, query: int, label: int) -> Iterator[tuple[int, float]]:
        """List the terms of one score, each a key and its share. The votes must be sorted by `sort_votes`."""
        start, stop = np.searchsorted(self.query, [query, query + 1])
        first, last = start + np.searchsorted(self.label[start:stop], [label, label + 1])
        yield from zip(self.key[first:last].tolist(), self.share[first:last].tolist(), strict=True)


@dataclass(frozen=True)
class Ranking:
    """Scored labels, sorted by query, then by falling score, then by label position."""

    query: Int[np.ndarray, " row"]
    label: Int[np.ndarray, " row"]
    score: Float[np.ndarray, " row"]


def key_weights(similarities: Float[np.ndarray, "query top_b"], temperature: float) -> Float[np.ndarray, "query top_b"]:
    """Weight each retrieved key by its similarity to the query: one softmax over the retrieved keys (RAE-XMC, Eq. 5).

    Args:
        similarities: Inner products of unit vectors, so in [-1, 1]; -inf for a missing key.
        temperature: Tau of the softmax.

    Returns:
        Weights in float64 that sum to 1 for every query with at least one key.

    Raises:
        ValueError: If `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, found {temperature}")
    logits = similarities.astype(np.float64) / temperature
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
    weights = key_weights(neighbours.similarities, temperature)
    query, slot = np.nonzero(neighbours.keys >= 0)
    key, weight = neighbours.keys[query, slot], weights[query, slot]
    is_label = key >= values.instances

    rows = key[~is_label]
    voter, labels = gather_rows(values.indptr, values.indices, rows)
    return Votes(
        query=np.concatenate([query[~is_label][voter], query[is_label]]),
        key=np.concatenate([rows[voter], key[is_label]]),
        label=np.concatenate([labels, key[is_label] - values.instances]),
        share=np.concatenate([lambda_ * weight[~is_label][voter], (1 - lambda_) * weight[is_label]]),
    )


def sort_votes(votes: Votes) -> Votes:
    """Sort votes by query, then by label, then by falling share."""
    order = np.lexsort((-votes.share, votes.label, votes.query))
    return Votes(votes.query[order], votes.key[order], votes.label[order], votes.share[order])


def rank(votes: Votes, values: Values) -> Ranking:
    """Sum the votes for each label of each query. Sort the labels by falling score, then by label position."""
    pair, index = np.unique(votes.query * np.int64(values.labels) + votes.label, return_inverse=True)
    score = np.bincount(index, weights=votes.share, minlength=len(pair)).astype(np.float64, copy=False)
    query, label = np.divmod(pair, values.labels)
    order = np.lexsort((-score, query))  # stable: equal scores stay sorted by label
    return Ranking(query[order], label[order], score[order])
