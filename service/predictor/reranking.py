"""Reranking: the ranker orders the labels that the votes found, and adds labels that they did not find.

The ranker's candidates come first, in order of their logits. The other labels follow, in order of their scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from recollect.service import loops
from recollect.service.bundle.values import Values
from recollect.service.memory.corrections import Corrections
from recollect.service.options import AnswerOptions
from recollect.service.predictor.answers import LogitTerm
from recollect.service.predictor.filters import LabelFilter
from recollect.service.predictor.scoring import Ranking
from recollect.service.predictor.searcher import Neighbours
from recollect.service.ranking.candidates import Searches
from recollect.service.ranking.ranker import RankedCandidates, Ranker

# The least factor of a correction in a logit, so that the logit is a number.
_LEAST_FACTOR = 1e-6


class Reranker:
    """Orders rankings of votes with a ranker.

    Attributes:
        ranker: The ranker.
    """

    def __init__(self, ranker: Ranker, values: Values) -> None:
        self.ranker, self._values = ranker, values

    def find(
        self,
        queries: Sequence[str],
        votes: Ranking,
        instances: Neighbours,
        labels: Neighbours,
        by_words: tuple[Neighbours, Neighbours] | None,
        options: AnswerOptions,
        label_filter: LabelFilter | None,
    ) -> RankedCandidates:
        """Find the candidates of some queries and their logits.

        Args:
            queries: The texts of the queries.
            votes: The scores by the nearest keys, without votes by words: the ranker has other features for words.
            instances: The nearest instances of each query.
            labels: The nearest labels of each query, by their positions.
            by_words: The instances and the labels that share words with each query; None without a lexical index.
            options: The options of the queries.
            label_filter: Admits candidates; None admits all labels.
        """
        searches = Searches.of(instances, labels, by_words, options.temperature, self._values)
        admits = None if label_filter is None else label_filter.admits
        return self.ranker.rank(queries, searches, votes, admits)

    def reorder(self, scores: Ranking, found: RankedCandidates, most: int | None = None) -> Ranking:
        """Put the candidates before all other labels by their logits, and take the first `most`."""
        candidates = found.candidates
        offsets, label, score, logit = loops.join_candidates(
            scores.offsets, scores.label, scores.score, candidates.offsets, candidates.label, found.logit
        )
        offsets, rows = loops.best_rows(offsets, most or len(label), logit, score, label)
        return Ranking(offsets, label[rows], score[rows], logit[rows])

    def correct(
        self,
        found: RankedCandidates,
        corrections: Corrections,
        vectors: Float[np.ndarray, "query dim"],
        temperature: float,
    ) -> RankedCandidates:
        """Lower the logits of the candidates that have corrections."""
        candidates, terms = found.candidates, np.zeros(len(found.logit))
        corrected = corrections.find(vectors, candidates.query, candidates.label, temperature)
        terms[corrected.place] = np.log(np.maximum(corrected.factor, _LEAST_FACTOR))
        return dataclasses.replace(found, logit=found.logit + terms, corrections=terms)

    def explain(self, query: int, label: int, found: RankedCandidates) -> list[LogitTerm]:
        """The terms of a label's logit, the greatest first; empty for a label that is no candidate."""
        offsets = found.candidates.offsets
        rows = offsets[query] + np.flatnonzero(found.candidates.label[offsets[query] : offsets[query + 1]] == label)
        if not len(rows):
            return []
        model, features = self.ranker.model, found.features[rows]
        names = (*model.features, "bias")
        values = [None if np.isnan(value) else float(value) for value in features[0]]
        terms = [*map(LogitTerm, names, [*values, None], model.contributions(features)[0].tolist())]
        if found.corrections is not None:
            terms.append(LogitTerm("correction", None, float(found.corrections[rows[0]])))
        return sorted((term for term in terms if term.log_odds), key=lambda term: -abs(term.log_odds))
