"""The ranker: orders the labels that the votes found by their log-odds, and adds labels that they did not find.

The ranker's candidates come first, in order of their logits. The other labels follow, in order of their scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from recollect.service import loops
from recollect.service.bundle.bundle import Bundle
from recollect.service.bundle.files import RANKER
from recollect.service.bundle.values import Values
from recollect.service.errors import BundleError
from recollect.service.memory.corrections import Corrections
from recollect.service.predictor.answers import LogitTerm
from recollect.service.predictor.scoring import Ranking
from recollect.service.predictor.searcher import Neighbours
from recollect.service.ranking.candidates import (
    ALL_FEATURES,
    Candidates,
    LabelFacts,
    Searches,
    find_candidates,
)
from recollect.service.ranking.model import RankerModel
from recollect.service.ranking.names import Names

# The least factor of a correction in a logit, so that the logit is a number.
_LEAST_FACTOR = 1e-6


@dataclass(frozen=True)
class RankedCandidates:
    """The candidates of some queries, their features and their log-odds.

    Attributes:
        candidates: The candidates.
        features: Their features, in the order of the model's columns.
        logit: The log-odds of each candidate.
        corrections: The part of each logit that comes from a correction of the label; None without corrections.
    """

    candidates: Candidates
    features: Float[np.ndarray, "candidate feature"]
    logit: Float[np.ndarray, " candidate"]
    corrections: Float[np.ndarray, " candidate"] | None = None


class Ranker:
    """Orders rankings of votes by the log-odds of their labels.

    Args:
        model: The model.
        facts: Properties of the labels.
        values: The labels of each instance.
    """

    def __init__(self, model: RankerModel, facts: LabelFacts, values: Values) -> None:
        self.model, self.facts, self._values = model, facts, values
        self._columns = [ALL_FEATURES.index(name) for name in model.features]

    @classmethod
    def open(cls, bundle: Bundle) -> Ranker:
        """Open the ranker of a bundle that has one.

        Raises:
            BundleError: If a file of the ranker is damaged.
        """
        components = bundle.components
        names = Names.open_with(components.open, len(bundle.labels))
        values = Values(bundle.instances.values, len(bundle.labels))
        return cls(components.open(open_model, RANKER), LabelFacts(bundle.labels.counts, names), values)

    def with_memory(self, facts: LabelFacts, values: Values) -> Ranker:
        """The same model for another memory."""
        return Ranker(self.model, facts, values)

    def rank(
        self,
        queries: Sequence[str],
        votes: Ranking,
        instances: Neighbours,
        labels: Neighbours,
        by_words: tuple[Neighbours, Neighbours] | None,
        temperature: float,
        admits: Bool[np.ndarray, " label"] | None = None,
    ) -> RankedCandidates:
        """Find the candidates of some queries and compute their log-odds.

        Args:
            queries: The texts of the queries.
            votes: The scores by the nearest keys, without votes by words: the ranker has other features for words.
            instances: The nearest instances of each query.
            labels: The nearest labels of each query, by their positions.
            by_words: The instances and the labels that share words with each query; None without a lexical index.
            temperature: Tau.
            admits: Whether a label may be a candidate; None admits all labels.
        """
        searches = Searches.of(instances, labels, by_words, temperature, self._values)
        candidates = find_candidates(queries, searches, votes, self._values, self.facts, admits)
        features = candidates.features[:, self._columns]
        return RankedCandidates(candidates, features, self.model.logits(features))

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
        model, features = self.model, found.features[rows]
        names = (*model.features, "bias")
        values = [None if np.isnan(value) else float(value) for value in features[0]]
        terms = [*map(LogitTerm, names, [*values, None], model.contributions(features)[0].tolist())]
        if found.corrections is not None:
            terms.append(LogitTerm("correction", None, float(found.corrections[rows[0]])))
        return sorted((term for term in terms if term.log_odds), key=lambda term: -abs(term.log_odds))


def open_model(path: Path) -> RankerModel:
    """Open a model whose features this release can compute.

    Raises:
        BundleError: If the file is not a ranker, or needs other features.
    """
    model = RankerModel.open(path)
    if unknown := sorted(set(model.features) - {*ALL_FEATURES}):
        raise BundleError(
            f"{path}: expected only features that this release computes, found {', '.join(unknown)}; "
            "fit the ranker again with `recollect rank`, and build the bundle again"
        )
    return model
