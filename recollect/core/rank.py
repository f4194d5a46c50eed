"""The steps from the vectors of queries to their labels, in the order in which they happen.

    1. similarity     the nearest keys of each query; with a filter, also keys that vote for the admitted labels
    2. softmax        weighs these keys, with their counts (Eq. 5)
    3. words          mixes in the keys that share words with the query
    4. votes, sum     each key gives its weight to its labels (Eq. 7)
    5. corrections    lower the scores of rejected labels
    6. order          by score, or by the ranker's log-odds, on request with a cross-encoder
    7. probability    of each label, from its score or its log-odds
    8. macro          order by probability and number of training texts, on request

`core/scoring.py` has the formulas of steps 2 to 4.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from recollect.core.answers import LogitTerm, Reason, Stopwatch
from recollect.core.bundle.manifest import Manifest, Probabilities
from recollect.core.errors import QueryError
from recollect.core.memory import Memory
from recollect.core.neighbours import Found
from recollect.core.options import AnswerOptions
from recollect.core.reranker.calibration import calibrate_answers, log_odds
from recollect.core.reranker.macro import MOST_REORDERED, macro_order, tail_term
from recollect.core.reranker.ranker import RankedCandidates, Ranker
from recollect.core.reranker.scorer import LeftOut
from recollect.core.scoring import ScoredLabels, WeightedKeys, vote, weigh
from recollect.core.search.filters import LabelFilter
from recollect.core.tables.corrections import Corrected
from recollect.core.words.terms import Words

# Maximum number of votes that the explanation of an answer lists.
MOST_TERMS = 8_192


class Queries(NamedTuple):
    """Encoded queries, and their words; None: words have no share, and the labels are in order of score.

    Attributes:
        texts: The texts, which a cross-encoder reads.
        deadlines: The times of `time.monotonic` after which the answers have no use; empty if there are none.
        checkpoint: Called between the queries that a cross-encoder reads; its error stops the computation.
    """

    vectors: Float[np.ndarray, "query dim"]
    words: Words | None = None
    texts: Sequence[str] = ()
    deadlines: Sequence[float] = ()
    checkpoint: Callable[[], None] = lambda: None

    @classmethod
    def of(
        cls,
        memory: Memory,
        texts: Sequence[str],
        vectors: Float[np.ndarray, "query dim"],
        options: AnswerOptions,
        deadlines: Sequence[float] = (),
        checkpoint: Callable[[], None] = lambda: None,
    ) -> Queries:
        """The queries, with their words if an answer with these options reads them."""
        has_ranker = memory.ranker is not None and options.by_probability
        needs_words = has_ranker or (memory.words is not None and options.word_weight > 0)
        return cls(vectors, Words.of(texts) if needs_words else None, texts, deadlines, checkpoint)


@dataclass(frozen=True)
class RankedLabels:
    """The ranked labels of some queries, and everything that explains their scores.

    Attributes:
        ranking: The labels, best first: as many as the options need.
        probabilities: The probability of each of them; None if the bundle has none for these options.
        corrections: The corrections that lowered scores, by their query and label, and their shares; each is negative.
        candidates: The ranker's candidates; None if the ranker did not order the labels.
        tail_weight: That of the order macro; None if the labels have another order.
    """

    ranking: ScoredLabels
    probabilities: Float[np.ndarray, " row"] | None
    memory: Memory
    lambda_: float
    weighted: WeightedKeys
    corrections: dict[tuple[int, int], tuple[int, float]]
    candidates: RankedCandidates | None
    tail_weight: float | None = None

    def reasons(self, query: int, labels: Sequence[int]) -> list[list[Reason]]:
        """The terms of the scores of some labels of a query, the greatest share first; too many are a QueryError."""
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
        for nth in np.argsort(-shares, kind="stable").tolist():
            by = "words" if columns[nth] >= first_word else None
            key = int(keys[nth])
            if key not in described:  # its votes for several labels share the strings
                described[key] = memory.describe(key)
            terms[places[nth]].append(Reason(*described[key], float(shares[nth]), by))
        for label, reasons in zip(labels, terms, strict=True):
            if (query, label) in self.corrections:
                reasons.append(memory.correction(*self.corrections[query, label]))
        return terms

    def left_out(self, query: int) -> LeftOut | None:
        """Why the cross-encoder did not read a query; None if it did, or was not asked to."""
        left_out = None if self.candidates is None else self.candidates.left_out
        return None if left_out is None else left_out[query]

    def logit_terms(self, query: int, label: int) -> list[LogitTerm] | None:
        """The terms of the ranker's logit, the greatest first, and that of the order macro; None without both."""
        terms = None
        if self.memory.ranker is not None and self.candidates is not None:
            terms = self.memory.ranker.explain(query, label, self.candidates)
        start = int(self.ranking.offsets[query])
        stop = min(start + MOST_REORDERED, int(self.ranking.offsets[query + 1]))
        if self.tail_weight is None or label not in self.ranking.label[start:stop]:
            return terms
        training_count = int(self.memory.labels.counts[label])
        term = LogitTerm("tail_weight", training_count, tail_term(training_count, self.tail_weight))
        return [*(terms or []), term] if term.log_odds else terms


def search(memory: Memory, queries: Queries, options: AnswerOptions, watch: Stopwatch) -> Found:
    """Find the keys that can vote: the nearest keys, and the keys that share words with a query."""
    by_words = None
    if memory.words is not None and queries.words is not None:
        by_words = memory.words.search(queries.words)
        watch.lap("words")
    lambda_ = None if _uses_ranker(memory, queries, options) else options.lambda_
    found = memory.searcher.search(queries.vectors, options.top_b, lambda_)
    watch.lap("search")
    return dataclasses.replace(found, by_words=by_words)


def rank(
    memory: Memory,
    queries: Queries,
    found: Found,
    options: AnswerOptions,
    watch: Stopwatch,
    label_filter: LabelFilter | None = None,
    keeps: Callable[[ScoredLabels], Bool[np.ndarray, " row"]] | None = None,
    separate: bool = False,
) -> RankedLabels:
    """Rank the labels of queries that have equal options.

    Args:
        label_filter: Admits labels; None admits all. With a filter, there is only one query.
        keeps: Chooses the rows of the whole ranking that remain; None: the first rows, as many as the options need.
    """
    values, how = memory.values, options.voting._replace(separate=separate)
    admits = None if label_filter is None else label_filter.admits
    ranker, candidates = memory.ranker if _uses_ranker(memory, queries, options) else None, None
    if ranker is not None and queries.words is not None:  # it has features of its own for words
        voting = weigh(found, how._replace(word_weight=0.0), values)
        candidates = ranker.rank(queries.words, found, voting, how, admits)
        watch.lap("rank")
        if options.rerank and ranker.cross is not None and len(queries.texts):
            deadlines = queries.deadlines or [math.inf] * len(queries.texts)
            candidates = ranker.rerank(
                candidates, queries.texts, memory.labels.texts.__getitem__, deadlines, queries.checkpoint
            )
            watch.lap("rerank")
    if label_filter is not None:

        def count_labels(larger: Found) -> int:
            counted = vote(larger, how, values, admits).scores
            return len(_without_dropped(memory, counted.best(), options).label if options.drops else counted.label)

        found = memory.admitted.find(queries.vectors, found, count_labels, options, label_filter)
        watch.lap("search")
    weighted, scores = vote(found, how, values, admits)

    corrections: dict[tuple[int, int], tuple[int, float]] = {}
    rejected = memory.snapshot.corrections
    if rejected.rows.present:
        vectors, temperature = queries.vectors, how.temperature
        corrections = _correct(scores, rejected.find(vectors, scores.query, scores.label, temperature))
        if ranker is not None and candidates is not None:
            candidates = ranker.correct(candidates, rejected, vectors, temperature)

    limit = options.ranked_labels if keeps is None and not options.drops else None
    ranking = scores.best(limit) if ranker is None or candidates is None else ranker.reorder(scores, candidates, limit)
    if keeps is not None:
        ranking = ranking.where(keeps(ranking))
    best, ranking = ranking.label[:1], _without_dropped(memory, ranking, options)
    is_complete = label_filter is None or (label_filter.admits_all and ranking.label[:1].tolist() == best.tolist())
    chances = _probabilities(memory.manifest, ranking, options, is_complete)
    if chances is not None and ranker is not None and candidates is not None and candidates.reranked.any():
        chances = _of_second_ranker(ranker, candidates, ranking, is_complete, chances)
    tail_weight = None
    if options.order == "macro" and options.tail_weight is not None and chances is not None:
        tail_weight = options.tail_weight
        stays = (chances >= options.min_probability) & (ranking.score >= options.threshold)
        order = macro_order(ranking.query, chances, memory.labels.counts[ranking.label], tail_weight, stays)
        ranking, chances = ranking.reordered(order), chances[order]
    watch.lap("combine")
    return RankedLabels(ranking, chances, memory, how.lambda_, weighted, corrections, candidates, tail_weight)


def _uses_ranker(memory: Memory, queries: Queries, options: AnswerOptions) -> bool:
    return memory.ranker is not None and options.by_probability and queries.words is not None


def _without_dropped(memory: Memory, ranking: ScoredLabels, options: AnswerOptions) -> ScoredLabels:
    for stays in options.drops:
        ranking = ranking.where(stays(ranking, memory.labels))
    return ranking


def _correct(scores: ScoredLabels, corrected: Corrected) -> dict[tuple[int, int], tuple[int, float]]:
    """Lower the scores of the labels that have corrections; return the correction and its share by query and label.

    A correction is one more vote with a negative share, so that the shares still add up to the score.
    """
    place = corrected.place
    if not len(place):
        return {}
    shares = (corrected.factor - 1) * scores.score[place]
    scores.score[place] += shares
    pairs = zip(scores.query[place].tolist(), scores.label[place].tolist(), strict=True)
    return dict(zip(pairs, zip(corrected.row.tolist(), shares.tolist(), strict=True), strict=True))


def _probabilities(
    manifest: Manifest, ranking: ScoredLabels, options: AnswerOptions, is_complete: bool
) -> Float[np.ndarray, " row"] | None:
    """The probability of each ranked label; None if the bundle has no probabilities for these options.

    Args:
        is_complete: Whether the first label of a query is the best one of all labels.
    """
    info = manifest.probabilities
    if info is None or not options.uses_votes_of(manifest.defaults) or (manifest.has_ranker and ranking.logit is None):
        return None
    logits = log_odds(ranking.score) if ranking.logit is None else ranking.logit
    return _calibrated(info, logits, ranking, is_complete)


def _of_second_ranker(
    ranker: Ranker,
    candidates: RankedCandidates,
    ranking: ScoredLabels,
    is_complete: bool,
    chances: Float[np.ndarray, " row"],
) -> Float[np.ndarray, " row"] | None:
    """The probabilities, with the calibration of the second ranker for the queries that it ranked."""
    assert ranker.cross is not None
    assert ranking.logit is not None
    if (info := ranker.cross.probabilities) is None:
        return None
    second = _calibrated(info, ranking.logit, ranking, is_complete)
    return np.where(np.repeat(candidates.reranked, np.diff(ranking.offsets)), second, chances)


def _calibrated(
    info: Probabilities, logits: Float[np.ndarray, " row"], ranking: ScoredLabels, is_complete: bool
) -> Float[np.ndarray, " row"]:
    first_calibration = info.first_calibration if is_complete else None
    return calibrate_answers(info.calibration, first_calibration, logits, ranking.offsets)
