"""Scoring: the found keys vote for labels, weighed by their similarity (RAE-XMC, Eq. 5 and 7).

    p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I]

over the b keys found. The cost grows with b and the labels of a key, never with the number of labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from service.predictor.searcher import Neighbours


@dataclass(frozen=True)
class Values:
    """The labels each instance votes for: row i has `indices[indptr[i] : indptr[i + 1]]`."""

    indptr: Int[np.ndarray, " offset"]
    indices: Int[np.ndarray, " pair"]
    labels: int

    @property
    def instances(self) -> int:
        return len(self.indptr) - 1


@dataclass(frozen=True)
class Votes:
    """Every term of every score: `key` gives `label` the share `share` of query `query`'s answer."""

    query: Int[np.ndarray, " vote"]
    key: Int[np.ndarray, " vote"]
    label: Int[np.ndarray, " vote"]
    share: Float[np.ndarray, " vote"]

    def of(self, query: int, label: int) -> Iterator[tuple[int, float]]:
        """The key and share of each term of one score, in votes sorted by `explaining`."""
        start, stop = np.searchsorted(self.query, [query, query + 1])
        first, last = start + np.searchsorted(self.label[start:stop], [label, label + 1])
        yield from zip(self.key[first:last].tolist(), self.share[first:last].tolist(), strict=True)


@dataclass(frozen=True)
class Ranking:
    """Scored labels: by query, then by falling score, then by rising label position."""

    query: Int[np.ndarray, " row"]
    label: Int[np.ndarray, " row"]
    score: Float[np.ndarray, " row"]


def key_weights(similarities: Float[np.ndarray, "query top_b"], temperature: float) -> Float[np.ndarray, "query top_b"]:
    """Weigh each found key by its similarity to the query: one softmax over the found keys (RAE-XMC, Eq. 5).

    Args:
        similarities: Inner products of unit vectors, so in [-1, 1]; -inf where no key was found.
        temperature: Tau.

    Returns:
        Weights that sum to 1 for every query with a key, in float64.

    Raises:
        ValueError: If `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, found {temperature}")
    logits = similarities.astype(np.float64) / temperature
    found = np.isfinite(logits)
    largest = logits.max(axis=1, keepdims=True, initial=np.finfo(np.float64).min, where=found)
    weights = np.exp(logits - largest)  # 0 where no key was found
    normalised: np.ndarray = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return normalised


def cast_votes(neighbours: Neighbours, temperature: float, lambda_: float, values: Values) -> Votes:
    """Share out each key's weight: lambda of it to each label of an instance, 1 - lambda to a label's own."""
    weights = key_weights(neighbours.similarities, temperature)
    query, slot = np.nonzero(neighbours.keys >= 0)
    key, weight = neighbours.keys[query, slot], weights[query, slot]
    is_label = key >= values.instances

    rows = key[~is_label]
    voter, labels = entries(values.indptr, values.indices, rows)
    return Votes(
        query=np.concatenate([query[~is_label][voter], query[is_label]]),
        key=np.concatenate([rows[voter], key[is_label]]),
        label=np.concatenate([labels, key[is_label] - values.instances]),
        share=np.concatenate([lambda_ * weight[~is_label][voter], (1 - lambda_) * weight[is_label]]),
    )


def entries(
    indptr: Int[np.ndarray, " offset"], indices: Int[np.ndarray, " pair"], rows: Int[np.ndarray, " row"]
) -> tuple[Int[np.ndarray, " entry"], Int[np.ndarray, " entry"]]:
    """What stands in some rows of a compressed matrix, after which of these rows it stands in."""
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    row = np.repeat(np.arange(len(rows)), counts)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, indices[starts[row] + nth]


def explaining(votes: Votes) -> Votes:
    """The same votes, by query, then by label, then by falling share."""
    order = np.lexsort((-votes.share, votes.label, votes.query))
    return Votes(votes.query[order], votes.key[order], votes.label[order], votes.share[order])


def rank(votes: Votes, values: Values) -> Ranking:
    """Add up the shares of each query's labels, best first; ties break by label position."""
    pair, index = np.unique(votes.query * np.int64(values.labels) + votes.label, return_inverse=True)
    score = np.bincount(index, weights=votes.share, minlength=len(pair)).astype(np.float64, copy=False)
    query, label = np.divmod(pair, values.labels)
    order = np.lexsort((-score, query))  # stable, and `pair` rises with the label
    return Ranking(query[order], label[order], score[order])
