"""Exhaustive ranking: score each label that a filter admits by all keys that vote for the label.

A search finds the keys near a query, but perhaps all of these keys vote for labels that the filter excludes. So it may
find no key that votes for a label that the filter admits. The file `voter_indices.npy` lists the instances that vote
for each label; each label's own key also votes for it. If the admitted labels have few votes, all of their keys are
compared with the query. If the admitted labels have many votes, a search for more keys usually finds enough labels,
and exhaustive ranking runs only if this search does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from recollect.service.bundle.manifest import MOST_KEYS
from recollect.service.bundle.values import Values, Voters
from recollect.service.errors import QueryError
from recollect.service.options import AnswerOptions
from recollect.service.predictor.answers import Stopwatch
from recollect.service.predictor.filters import LabelFilter
from recollect.service.predictor.scoring import Ranking, Votes, cast_votes, key_weights, rank
from recollect.service.predictor.searcher import Neighbours, Searcher
from recollect.service.predictor.words import mix

# Up to this number of votes for the admitted labels, exhaustive ranking costs less than a search for many keys.
MAX_CHEAP_VOTES = 16_384
# A filtered search that finds too few labels is repeated with top_b multiplied by this factor, up to `MOST_KEYS` keys.
_TOP_B_GROWTH = 4
# Number of votes that are in memory at the same time.
_BLOCK_VOTES = 1 << 20


class ExhaustiveRanker:
    """Ranks labels by all keys that vote for them, not only by the keys that a search finds.

    A label gets a vote from its voters and from its own key.
    """

    def __init__(self, voters: Voters, searcher: Searcher, values: Values) -> None:
        self._voters, self._searcher, self._values = voters, searcher, values

    def rank_admitted(
        self,
        vector: Float[np.ndarray, "1 dim"],
        nearest: Neighbours,
        votes: Votes,
        by_words: Votes | None,
        options: AnswerOptions,
        label_filter: LabelFilter,
        watch: Stopwatch,
    ) -> tuple[Ranking, Votes]:
        """Rank the labels that a filter admits: retrieve more keys until k labels are found, or rank exhaustively.

        Args:
            vector: The query.
            nearest: The keys that a search found for the query.
            votes: Their votes.
            by_words: Votes by words of the query; None means that words have no share in the score.
            options: The options of the query.
            label_filter: The filter.
            watch: Measures the stages.
        """
        top_b, max_top_b = options.top_b, min(self._searcher.keys, MOST_KEYS)
        enough = min(options.top_k, self.count_rankable(label_filter, options.lambda_))
        exhaustive_is_cheap = self.is_cheap(label_filter, options.lambda_)
        while not exhaustive_is_cheap:
            all_votes = votes if by_words is None else mix(votes, by_words, options.word_weight)
            ranking = label_filter.apply(rank(all_votes, self._values))
            watch.lap("combine")
            if len(ranking.label) >= enough:
                return ranking, all_votes
            if top_b >= max_top_b:
                break
            top_b = min(top_b * _TOP_B_GROWTH, max_top_b)
            found = self._searcher.search(vector, top_b, options.lambda_)
            votes = cast_votes(found, options.temperature, options.lambda_, self._values)
            watch.lap("search")
        return self.rank(
            vector[0],
            nearest,
            label_filter.labels,
            options.temperature,
            options.lambda_,
            options.top_k if options.explain else 0,
            by_words,
            options.word_weight,
        )

    def is_cheap(self, label_filter: LabelFilter, lambda_: float) -> bool:
        """Whether the admitted labels have so few votes that exhaustive ranking is faster than a search."""
        if not label_filter.allows_all:
            return self._count_votes(label_filter.labels, lambda_) <= MAX_CHEAP_VOTES
        all_votes = self._voters.pairs * (lambda_ > 0) + len(label_filter.admits) * (lambda_ < 1)
        denied = np.flatnonzero(~label_filter.admits)
        return all_votes - self._count_votes(denied, lambda_) <= MAX_CHEAP_VOTES

    def count_rankable(self, label_filter: LabelFilter, lambda_: float) -> int:
        """The number of admitted labels that get a vote from at least one key. At lambda 1, label keys have no vote."""
        labels = label_filter.labels
        return int(np.count_nonzero(self._voters.counts(labels))) if lambda_ == 1 else len(labels)

    def rank(
        self,
        vector: Float[np.ndarray, " dim"],
        nearest: Neighbours,
        labels: Int[np.ndarray, " label"],
        temperature: float,
        lambda_: float,
        explained: int,
        by_words: Votes | None = None,
        word_weight: float = 0.0,
    ) -> tuple[Ranking, Votes]:
        """Rank labels by all keys that vote for them.

        The softmax is over these keys and the keys that a search found; a key in both groups counts once.

        Args:
            vector: The query.
            nearest: The keys that a search found for the query.
            labels: Positions of the labels, in rising order.
            temperature: Tau of the softmax.
            lambda_: Weight of instances against labels.
            explained: The votes for this number of best labels are returned.
            by_words: Votes by words of the query; None, or no votes, means that words have no share in the score.
            word_weight: Their share.

        Returns:
            The labels that get a vote, ranked, and the votes of the best labels.

        Raises:
            QueryError: If there are too many votes to compare or to return.
        """
        weight = self._key_weights(vector, nearest, labels, temperature, lambda_)
        score, has_vote = np.zeros(len(labels)), np.full(len(labels), lambda_ < 1)
        for block in self._blocks(labels, lambda_):
            row, key = self._voters.gather(labels[block])
            score[block] = lambda_ * np.bincount(row, weights=weight[key], minlength=len(labels[block]))
            has_vote[block] |= self._voters.counts(labels[block]) > 0
        if lambda_ < 1:
            score += (1 - lambda_) * weight[self._label_keys(labels)]
        if by_words is not None and len(by_words.label):
            # A label with a vote by words has a vote here too, because the same keys vote for it.
            admitted = by_words.take(np.isin(by_words.label, labels))
            score *= 1 - word_weight
            np.add.at(score, np.searchsorted(labels, admitted.label), word_weight * admitted.share)
        order = np.argsort(-score[has_vote], kind="stable")
        best, score = labels[has_vote][order], score[has_vote][order]
        ranking = Ranking(np.zeros(len(best), dtype=np.int64), best, score)
        votes = self._votes(best[:explained], weight, lambda_)
        if by_words is not None:
            votes = mix(votes, by_words, word_weight)
            votes = votes.take(np.isin(votes.label, best[:explained]))
        return ranking, votes

    def _key_weights(
        self,
        vector: Float[np.ndarray, " dim"],
        nearest: Neighbours,
        labels: Int[np.ndarray, " label"],
        temperature: float,
        lambda_: float,
    ) -> Float[np.ndarray, " key"]:
        """The weight of every key; 0 if a key neither votes for one of the labels nor was found by the search."""
        keys = self._voting_keys(labels, lambda_)
        found = nearest.keys[0] >= 0
        weighted = np.union1d(keys, nearest.keys[0, found])
        similarities = np.empty(len(weighted), dtype=np.float32)
        similarities[np.searchsorted(weighted, keys)] = self._searcher.similarities(vector, keys)
        similarities[np.searchsorted(weighted, nearest.keys[0, found])] = nearest.similarities[0, found]
        weight = np.zeros(self._searcher.keys)
        weight[weighted] = key_weights(similarities[None], temperature, self._values.log_counts_of(weighted[None]))[0]
        return weight

    def _voting_keys(self, labels: Int[np.ndarray, " label"], lambda_: float) -> Int[np.ndarray, " key"]:
        """The keys that vote for at least one of the labels, in rising order."""
        votes = np.zeros(self._searcher.instances.keys, dtype=bool)
        for block in self._blocks(labels, lambda_):
            votes[self._voters.gather(labels[block])[1]] = True
        label_keys = self._label_keys(labels) if lambda_ < 1 else labels[:0]
        return np.concatenate([np.flatnonzero(votes), label_keys])

    def _votes(self, labels: Int[np.ndarray, " label"], weight: Float[np.ndarray, " key"], lambda_: float) -> Votes:
        """All votes for the given labels."""
        if (votes := self._count_votes(labels, lambda_)) > MAX_CHEAP_VOTES:
            raise QueryError(
                f"explain: expected at most {MAX_CHEAP_VOTES:,} keys that vote for the labels found, found {votes:,}; "
                "set a smaller top_k, or set explain to false"
            )
        row, key = self._voters.gather(labels if lambda_ > 0 else labels[:0])
        label_keys = self._label_keys(labels) if lambda_ < 1 else labels[:0]
        return Votes(
            query=np.zeros(len(key) + len(label_keys), dtype=np.int64),
            key=np.concatenate([key, label_keys]),
            label=np.concatenate([labels[row], label_keys - self._searcher.instances.keys]),
            share=np.concatenate([lambda_ * weight[key], (1 - lambda_) * weight[label_keys]]),
        )

    def _label_keys(self, labels: Int[np.ndarray, " label"]) -> Int[np.ndarray, " label"]:
        return labels + self._searcher.instances.keys

    def _count_votes(self, labels: Int[np.ndarray, " label"], lambda_: float) -> int:
        """The number of votes for the labels, without votes that lambda gives the weight 0."""
        from_instances = int(self._voters.counts(labels).sum()) if lambda_ > 0 else 0
        return from_instances + (len(labels) if lambda_ < 1 else 0)

    def _blocks(self, labels: Int[np.ndarray, " label"], lambda_: float) -> Iterator[slice]:
        """Slices of the labels; the labels of one slice have about `_BLOCK_VOTES` votes of instances.

        At lambda 0 there are no slices.
        """
        if lambda_ == 0:
            return
        block = np.cumsum(self._voters.counts(labels)) // _BLOCK_VOTES
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        for start, stop in itertools.pairwise([*starts.tolist(), len(labels)]):
            yield slice(start, stop)
