"""Filters: labels that a request allows or denies, and the keys that vote for those it admits.

A search finds the keys near the query, whichever labels they vote for. The values transposed name the keys of a label
instead: its instances and its own. Where a filter admits labels with few keys, all of these are compared with the
query; where with many, a search further out mostly finds enough of them, and all are compared only if it does not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Int

from service.bundle.bundle import LabelTable
from service.errors import QueryError
from service.predictor.scoring import Ranking, Votes, entries, key_weights
from service.predictor.searcher import Neighbours, Searcher

# Votes for admitted labels up to which all their keys are compared at once: that costs less than searching far.
FEW_VOTES = 16_384
# Votes that are laid out at a time where there are many.
_BLOCK_VOTES = 1 << 20


class Filter:
    """The labels that are allowed, or all, but for those denied.

    Args:
        allow: Label uids; None allows every label.
        deny: Label uids.
        labels: The bundle's. A uid that it lacks admits and denies nothing: lists outlive versions.
    """

    def __init__(self, allow: Iterable[str] | None, deny: Iterable[str], labels: LabelTable) -> None:
        self.admits: Bool[np.ndarray, " label"] = np.full(len(labels), allow is None)
        if allow is not None:
            self.admits[labels.positions(allow)] = True
        self.admits[labels.positions(deny)] = False
        self.allows_all = allow is None

    @functools.cached_property
    def labels(self) -> Int[np.ndarray, " label"]:
        """The admitted labels, rising."""
        return np.flatnonzero(self.admits)

    def apply(self, ranking: Ranking) -> Ranking:
        """What a ranking says of admitted labels."""
        kept = self.admits[ranking.label]
        return Ranking(ranking.query[kept], ranking.label[kept], ranking.score[kept])


class Voters:
    """The keys that vote for each label: the values transposed, and the keys themselves in the indexes.

    Label l has the instances `indices[indptr[l] : indptr[l + 1]]`, and its own key.
    """

    def __init__(
        self, indptr: Int[np.ndarray, " offset"], indices: Int[np.ndarray, " pair"], searcher: Searcher
    ) -> None:
        self._indptr, self._indices, self._searcher = indptr, indices, searcher

    def few(self, chosen: Filter, lambda_: float) -> bool:
        """Whether the labels that a filter admits have so few votes that all are best counted."""
        if not chosen.allows_all:
            return self._votes(chosen.labels, lambda_) <= FEW_VOTES
        every = len(self._indices) * (lambda_ > 0) + len(chosen.admits) * (lambda_ < 1)
        return every - self._votes(np.flatnonzero(~chosen.admits), lambda_) <= FEW_VOTES

    def answerable(self, chosen: Filter, lambda_: float) -> int:
        """How many of the admitted labels any key votes for."""
        return int(np.count_nonzero(chosen.admits & (np.diff(self._indptr) > 0) if lambda_ == 1 else chosen.admits))

    def rank(
        self,
        vector: Float[np.ndarray, " dim"],
        nearest: Neighbours,
        labels: Int[np.ndarray, " label"],
        temperature: float,
        lambda_: float,
        explained: int,
    ) -> tuple[Ranking, Votes]:
        """Rank labels by all the keys that vote for them.

        The softmax is over these keys and those that a search found, each once.

        Args:
            vector: The query.
            nearest: What a search found for it.
            labels: Rising.
            temperature: Tau.
            lambda_: Weight of instances against labels.
            explained: How many of the best labels have their votes told.

        Returns:
            Those of the labels for which any key votes, and the votes.

        Raises:
            QueryError: If there are too many votes to tell.
        """
        weight = self._weights(vector, nearest, labels, temperature, lambda_)
        score, voted = np.zeros(len(labels)), np.full(len(labels), lambda_ < 1)
        for part in self._parts(labels, lambda_):
            nth, key = entries(self._indptr, self._indices, labels[part])
            score[part] = lambda_ * np.bincount(nth, weights=weight[key], minlength=len(labels[part]))
            voted[part] |= self._counts(labels[part]) > 0
        if lambda_ < 1:
            score += (1 - lambda_) * weight[self._own(labels)]
        order = np.argsort(-score[voted], kind="stable")
        best, score = labels[voted][order], score[voted][order]
        ranking = Ranking(np.zeros(len(best), dtype=np.int64), best, score)
        return ranking, self._told(best[:explained], weight, lambda_)

    def _weights(
        self,
        vector: Float[np.ndarray, " dim"],
        nearest: Neighbours,
        labels: Int[np.ndarray, " label"],
        temperature: float,
        lambda_: float,
    ) -> Float[np.ndarray, " key"]:
        """The weight of every key of the memory; 0 of one that neither was found nor votes for any of the labels."""
        keys = self._keys(labels, lambda_)
        found = nearest.keys[0] >= 0
        every = np.union1d(keys, nearest.keys[0, found])
        similarities = np.empty(len(every), dtype=np.float32)
        similarities[np.searchsorted(every, keys)] = self._searcher.compare(vector, keys)
        similarities[np.searchsorted(every, nearest.keys[0, found])] = nearest.similarities[0, found]
        weight = np.zeros(self._searcher.keys)
        weight[every] = key_weights(similarities[None], temperature)[0]
        return weight

    def _keys(self, labels: Int[np.ndarray, " label"], lambda_: float) -> Int[np.ndarray, " key"]:
        """The keys that vote for any of the labels, rising."""
        votes = np.zeros(self._searcher.instances.keys, dtype=bool)
        for part in self._parts(labels, lambda_):
            votes[entries(self._indptr, self._indices, labels[part])[1]] = True
        own = self._own(labels) if lambda_ < 1 else labels[:0]
        return np.concatenate([np.flatnonzero(votes), own])

    def _told(self, labels: Int[np.ndarray, " label"], weight: Float[np.ndarray, " key"], lambda_: float) -> Votes:
        """Every vote for some labels."""
        if (votes := self._votes(labels, lambda_)) > FEW_VOTES:
            raise QueryError(
                f"explain: expected at most {FEW_VOTES:,} keys that vote for the labels found, found {votes:,}; "
                "ask for fewer labels with top_k, or for no explanation"
            )
        nth, key = entries(self._indptr, self._indices, labels if lambda_ > 0 else labels[:0])
        own = self._own(labels) if lambda_ < 1 else labels[:0]
        return Votes(
            query=np.zeros(len(key) + len(own), dtype=np.int64),
            key=np.concatenate([key, own]),
            label=np.concatenate([labels[nth], own - self._searcher.instances.keys]),
            share=np.concatenate([lambda_ * weight[key], (1 - lambda_) * weight[own]]),
        )

    def _own(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        """The labels' own keys."""
        return labels + self._searcher.instances.keys

    def _counts(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        """How many instances vote for each label."""
        counts: np.ndarray = self._indptr[labels + 1] - self._indptr[labels]
        return counts

    def _votes(self, labels: Int[np.ndarray, " label"], lambda_: float) -> int:
        """How many votes the labels can get from the keys that lambda gives a vote."""
        instances = int(self._counts(labels).sum()) if lambda_ > 0 else 0
        return instances + (len(labels) if lambda_ < 1 else 0)

    def _parts(self, labels: Int[np.ndarray, " label"], lambda_: float) -> Iterator[slice]:
        """The labels in parts of about `_BLOCK_VOTES` votes of instances; none where lambda gives these no weight."""
        if lambda_ == 0:
            return
        block = np.cumsum(self._counts(labels)) // _BLOCK_VOTES
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        for start, stop in itertools.pairwise([*starts.tolist(), len(labels)]):
            yield slice(start, stop)
