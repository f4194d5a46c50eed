"""Candidates: the labels of a query that the ranker orders, and the evidence for them.

The candidates are the best labels by each of several measures: the votes of all keys (Eq. 7), the votes of instances
alone, the similarity of labels, and instances and labels found by words. A label that is good by one measure is a
candidate even if the other measures do not find it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.service.bundle.values import Values
from recollect.service.lexical.index import FoundByWords
from recollect.service.ranking.evidence import Found, Pairs, Support

# Number of candidates of each query: by the votes of all keys, and by each other measure.
BY_VOTES, BY_OTHERS = 100, 40


@dataclass(frozen=True)
class Searches:
    """The results of the searches for a block of queries.

    Attributes:
        instances: The nearest instances.
        labels: The nearest labels.
        instance_words: The instances that share words with the query; None without a lexical index.
        label_words: The labels that share words with the query; None without a lexical index.
    """

    instances: Found
    labels: Found
    instance_words: Found | None = None
    label_words: Found | None = None

    @classmethod
    def of(cls, instances: Found, labels: Found, by_words: tuple[FoundByWords, FoundByWords] | None) -> Searches:
        """Add the instances and the labels that were found by words, if there is a lexical index."""
        return cls(instances, labels, *(() if by_words is None else map(Found.by_words, by_words)))


@dataclass(frozen=True)
class Voted:
    """Votes for labels: label `label[i]` of query `query[i]` gets `share[i]`. The sum of its shares is its score."""

    query: Int[np.ndarray, " vote"]
    label: Int[np.ndarray, " vote"]
    share: Float[np.ndarray, " vote"]


@dataclass(frozen=True)
class Candidates:
    """The candidates of a block of queries, by query, then by label, with the evidence of each search.

    Attributes:
        query: The query of each candidate.
        label: The label of each candidate.
        score: The votes for the candidate (Eq. 7).
        support: The evidence of each search, by the names of `Searches`.
        best_score: The score of the best label of the candidate's query, which need not be a candidate.
        nearest: Similarity of the nearest key of each search to the candidate's query; NaN if the search found none.
    """

    query: Int[np.ndarray, " candidate"]
    label: Int[np.ndarray, " candidate"]
    score: Float[np.ndarray, " candidate"]
    support: dict[str, Support]
    best_score: Float[np.ndarray, " candidate"]
    nearest: dict[str, Float[np.ndarray, " candidate"]]


def find_candidates(
    searches: Searches,
    voted: Voted,
    values: Values,
    admits: Bool[np.ndarray, " label"] | None = None,
    by_votes: int = BY_VOTES,
    by_others: int = BY_OTHERS,
) -> Candidates:
    """Choose the candidates of each query.

    Args:
        searches: The keys that were found.
        voted: The votes of all keys (Eq. 7).
        values: The labels of each instance.
        admits: Whether a label may be a candidate; None admits all labels.
        by_votes: Number of candidates by votes.
        by_others: Number of candidates by each other measure.
    """
    entries = {
        name: Pairs.of_labels(found, values.labels) if name.startswith("label") else Pairs.of_instances(found, values)
        for name, found in vars(searches).items()
        if found is not None
    }
    voted_pair = voted.query * np.int64(values.labels) + voted.label
    pair, row = np.unique(np.concatenate([voted_pair, *(each.pair for each in entries.values())]), return_inverse=True)
    ends = np.cumsum([len(voted_pair), *(len(each.pair) for each in entries.values())])
    support = {
        name: Support.of(each, row[start:stop], len(pair))
        for (name, each), start, stop in zip(entries.items(), ends[:-1], ends[1:], strict=True)
    }
    score = np.bincount(row[: ends[0]], weights=voted.share, minlength=len(pair))
    query, label = np.divmod(pair, values.labels)
    starts = np.searchsorted(query, np.arange(len(searches.labels.keys)))
    place = np.arange(len(pair)) - starts[query]  # the place of each pair among those of its query
    admitted = 1.0 if admits is None else admits[label]
    chosen = _best(query, place, admitted * score, by_votes)
    for each in support.values():
        chosen |= _best(query, place, admitted * each.weight, by_others)
    best_score = np.zeros(len(starts))
    np.maximum.at(best_score, query, score)
    query, label = query[chosen], label[chosen]
    return Candidates(
        query=query,
        label=label,
        score=score[chosen],
        support={name: each[chosen] for name, each in support.items()},
        best_score=best_score[query],
        nearest={name: found.nearest[query] for name, found in vars(searches).items() if found is not None},
    )


def _best(
    query: Int[np.ndarray, " pair"], place: Int[np.ndarray, " pair"], measure: Float[np.ndarray, " pair"], most: int
) -> Bool[np.ndarray, " pair"]:
    """Mark the pairs of each query with the greatest measures above 0, at most `most`."""
    order = np.lexsort((-measure, query))  # the queries stay in order, so `place` is also the place in this order
    chosen = np.zeros(len(query), dtype=bool)
    chosen[order] = place < most
    return chosen & (measure > 0)
