"""The steps from the vectors of queries to their ranked labels, in the order in which they happen.

    1. similarity     the nearest keys of each query; with a filter, also keys that vote for the admitted labels
    2. softmax        weighs these keys, with their counts (Eq. 5)
    3. words          mixes in the keys that share words with the query
    4. votes, sum     each key gives its weight to its labels (Eq. 7)
    5. corrections    lower the scores of rejected labels
    6. order          by score, or by the ranker's log-odds

The probability of each label is last: `Predictor.probabilities`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from recollect.core.answers import LogitTerm, Reason, Stopwatch
from recollect.core.errors import QueryError
from recollect.core.memory import Memory
from recollect.core.neighbours import Neighbours
from recollect.core.options import MOST_ASSIGNED, AnswerOptions
from recollect.core.reranker.candidates import Found
from recollect.core.reranker.ranker import RankedCandidates
from recollect.core.scoring import Ranking, WeightedKeys, score_labels, weigh_keys
from recollect.core.search.filters import LabelFilter
from recollect.core.tables.corrections import Corrected
from recollect.core.words.terms import Words

# Maximum number of votes that the explanation of an answer lists.
MOST_TERMS = 8_192


@dataclass(frozen=True)
class RankedLabels:
    """The ranked labels of some queries, and everything that explains their scores.

    Attributes:
        ranking: The labels, best first: one more than `top_k`, or as many as an assignment reads.
        memory: The memory that ranked them.
        lambda_: Weight of instances against labels.
        weighted: The keys that voted.
        corrections: The corrections that lowered scores, by their query and label, and their shares; each is negative.
        candidates: The ranker's candidates; None if the ranker did not order the labels.
    """

    ranking: Ranking
    memory: Memory
    lambda_: float
    weighted: WeightedKeys
    corrections: dict[tuple[int, int], tuple[int, float]]
    candidates: RankedCandidates | None

    def reasons(self, query: int, labels: Sequence[int]) -> list[list[Reason]]:
        """The terms of the scores of some labels of a query, the greatest share first.

        Raises:
            QueryError: If too many keys vote for the labels.
        """
        memory, weighted = self.memory, self.weighted
        places, columns = weighted.voters(query, np.array(labels, dtype=np.int64), memory.values)
        if len(places) > MOST_TERMS:
            raise QueryError(
                f"explain: expected at most {MOST_TERMS:,} votes of keys for the labels found, found {len(places):,}; "
                "set a smaller top_k, or set explain to false"
            )
        keys, weights = weighted.keys[query, columns], weighted.weights[query, columns]
        shares = np.where(keys < memory.values.instances, self.lambda_, 1 - self.lambda_) * weights
        first_word = weighted.keys.shape[1] - weighted.by_words
        terms: list[list[Reason]] = [[] for _ in labels]
        described = dict[int, tuple[str, str, str]]()
        for vote in np.argsort(-shares, kind="stable").tolist():
            by = "words" if columns[vote] >= first_word else None
            key = int(keys[vote])
            if key not in described:  # its votes for several labels share the strings
                described[key] = memory.describe(key)
            terms[places[vote]].append(Reason(*described[key], float(shares[vote]), by))
        for label, reasons in zip(labels, terms, strict=True):
            if (query, label) in self.corrections:
                reasons.append(memory.correction(*self.corrections[query, label]))
        return terms

    def logit_terms(self, query: int, label: int) -> list[LogitTerm] | None:
        """The terms of the ranker's logit, the greatest first; None if the ranker did not order the labels."""
        if self.memory.ranker is None or self.candidates is None:
            return None
        return self.memory.ranker.explain(query, label, self.candidates)


def rank_labels(
    memory: Memory,
    queries: Sequence[str] | None,
    vectors: Float[np.ndarray, "query dim"],
    options: AnswerOptions,
    label_filter: LabelFilter | None,
    watch: Stopwatch,
) -> RankedLabels:
    """Rank the labels of queries that have equal options.

    Args:
        memory: The memory that answers.
        queries: The texts of the queries; None: words have no share, and the labels are in order of score.
        vectors: The vectors of the queries.
        options: Their options.
        label_filter: Admits labels; None admits all. With a filter, there is only one query.
        watch: Measures the stages.
    """
    values, lambda_ = memory.values, options.lambda_
    ranker = memory.ranker if options.order == "probability" and queries is not None else None
    needs_words = ranker is not None or (memory.words is not None and options.word_weight > 0)
    words = Words.of(queries) if queries is not None and needs_words else None
    found_by_words, by_words = None, None
    if memory.words is not None and words is not None:
        found_by_words = memory.words.search_each(words)
        by_words = memory.words.join(found_by_words, lambda_) if options.word_weight > 0 else None
        watch.lap("words")

    admits = None if label_filter is None else label_filter.admits
    candidates = None
    if ranker is None or words is None:
        nearest = memory.searcher.search(vectors, options.top_b, lambda_)
        watch.lap("search")
    else:
        nearest, instances, labels = memory.searcher.search_each(vectors, options.top_b, lambda_)
        watch.lap("search")
        # The ranker has features of its own for words.
        voting = weigh_keys(nearest, options.temperature, values)
        found = Found(instances, labels, found_by_words)
        candidates = ranker.rank(words, found, voting, lambda_, options.temperature, admits)
        watch.lap("rank")

    def score(found: Neighbours) -> tuple[WeightedKeys, Ranking]:
        weighted = weigh_keys(found, options.temperature, values, by_words, options.word_weight)
        return weighted, score_labels(weighted, lambda_, values, admits)

    if label_filter is not None:
        nearest = memory.admitted.find(
            vectors, nearest, lambda found: len(score(found)[1].label), options, label_filter
        )
        watch.lap("search")
    weighted, scores = score(nearest)

    corrections: dict[tuple[int, int], tuple[int, float]] = {}
    rejected = memory.snapshot.corrections
    if rejected.rows.present:
        corrections = _correct(scores, rejected.find(vectors, scores.query, scores.label, options.temperature))
        if ranker is not None and candidates is not None:
            candidates = ranker.correct(candidates, rejected, vectors, options.temperature)

    # The probability of the first label depends on the second one, and an assignment on more labels.
    most = max(options.top_k + 1, MOST_ASSIGNED if options.assign else 0)
    ranking = scores.best(most) if ranker is None or candidates is None else ranker.reorder(scores, candidates, most)
    watch.lap("combine")
    return RankedLabels(ranking, memory, lambda_, weighted, corrections, candidates)


def _correct(scores: Ranking, corrected: Corrected) -> dict[tuple[int, int], tuple[int, float]]:
    """Lower the scores of the labels that have corrections.

    A correction is one more vote with a negative share, so that the shares still add up to the score.

    Returns:
        The correction that counts for a query and a label, and its share.
    """
    place = corrected.place
    if not len(place):
        return {}
    shares = (corrected.factor - 1) * scores.score[place]
    scores.score[place] += shares
    pairs = zip(scores.query[place].tolist(), scores.label[place].tolist(), strict=True)
    return dict(zip(pairs, zip(corrected.row.tolist(), shares.tolist(), strict=True), strict=True))
