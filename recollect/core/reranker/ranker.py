"""The ranker: orders the labels that the votes found by their log-odds, and adds labels that they did not find.

The ranker's candidates come first, in order of their logits. The other labels follow, in order of their scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from recollect.core import kernels
from recollect.core.answers import LogitTerm
from recollect.core.bundle.bundle import Bundle
from recollect.core.bundle.files import CROSS_RANKER, RANKER
from recollect.core.bundle.values import Values
from recollect.core.errors import BundleError
from recollect.core.neighbours import Found
from recollect.core.options import Voting
from recollect.core.reranker.candidates import (
    ALL_FEATURES,
    CLASSIFIER,
    STEM_FEATURES,
    WORD_FEATURES,
    Candidates,
    find_candidates,
)
from recollect.core.reranker.cross_ranker import FEATURES, CrossRanker
from recollect.core.reranker.label_facts import LabelFacts
from recollect.core.reranker.model import RankerModel
from recollect.core.reranker.scorer import LeftOut
from recollect.core.scoring import ScoredLabels, WeightedKeys
from recollect.core.settings import RerankerSettings
from recollect.core.tables.corrections import Corrections
from recollect.core.words.terms import Words

# The least factor of a correction in a logit, so that the logit is a number.
_LEAST_FACTOR = 1e-6


@dataclass(frozen=True)
class RankedCandidates(Candidates):
    """The candidates of some queries, with their log-odds.

    Attributes:
        corrections: The part of each logit that comes from a correction of the label; None without corrections.
        left_out: Why the cross-encoder did not read each query; None for a query that it read. None if it was not
            asked for.
    """

    logit: Float[np.ndarray, " candidate"]
    corrections: Float[np.ndarray, " candidate"] | None = None
    left_out: list[LeftOut | None] | None = None

    @property
    def reranked(self) -> Bool[np.ndarray, " query"]:
        """Whether the second ranker ordered the candidates of each query."""
        queries = len(self.offsets) - 1
        return np.array([reason is None for reason in self.left_out or ["text"] * queries], dtype=bool)


def _check_files(bundle: Bundle, file: str, features: Sequence[str]) -> None:
    """Raise `BundleError` if a ranker reads features whose files are not in the bundle."""
    manifest = bundle.manifest
    has_files = {CLASSIFIER: manifest.has_classifier}
    has_files |= dict.fromkeys(STEM_FEATURES, manifest.has_stems) | dict.fromkeys(
        WORD_FEATURES, manifest.has_lexical_index
    )
    if lacking := [name for name in features if not has_files.get(name, True)]:
        raise BundleError(
            f"{bundle.folder / file}: expected files for the features {', '.join(lacking)}, found none; build the "
            "bundle again"
        )


class Ranker:
    """Orders rankings of votes by the log-odds of their labels. `cross` is None without a cross-encoder."""

    def __init__(self, model: RankerModel, facts: LabelFacts, values: Values, cross: CrossRanker | None = None) -> None:
        self.model, self.facts, self._values, self.cross = model, facts, values, cross

    @classmethod
    def open(cls, bundle: Bundle, threads: int, connections: RerankerSettings | None = None) -> Ranker:
        """Open the ranker of a bundle that has one. The other arguments are for a cross-encoder, if it has one."""
        values = Values(bundle.instances.values, len(bundle.labels))
        model = bundle.components.open(RankerModel.open, RANKER, ALL_FEATURES)
        cross = CrossRanker.open(bundle, threads, connections) if bundle.manifest.has_cross_encoder else None
        for each, file in ((model, RANKER), *([(cross.model, CROSS_RANKER)] if cross else [])):
            _check_files(bundle, file, each.features)
        return cls(model, LabelFacts.open(bundle), values, cross)

    def rank(
        self,
        words: Words,
        found: Found,
        voting: WeightedKeys,
        how: Voting,
        admits: Bool[np.ndarray, " label"] | None = None,
    ) -> RankedCandidates:
        """Find the candidates of some queries, and compute their log-odds; see `find_candidates`."""
        candidates = find_candidates(words, found, voting, how, self._values, self.facts, admits)
        logits = self.model.logits(candidates.features)
        return RankedCandidates(candidates.offsets, candidates.label, candidates.features, logits)

    def rerank(
        self,
        candidates: RankedCandidates,
        queries: Sequence[str],
        text_of: Callable[[int], str],
        deadlines: Sequence[float],
        checkpoint: Callable[[], None],
    ) -> RankedCandidates:
        """Replace the log-odds by those with the feature of the cross-encoder; see `CrossRanker.rank`."""
        assert self.cross is not None
        features, logit, left_out = self.cross.rank(
            candidates, candidates.logit, queries, text_of, deadlines, checkpoint
        )
        return dataclasses.replace(candidates, features=features, logit=logit, left_out=left_out)

    def reorder(self, scores: ScoredLabels, candidates: RankedCandidates, limit: int | None = None) -> ScoredLabels:
        """Put the candidates before all other labels by their logits, and take the first `limit`."""
        limit = limit or len(scores.label) + len(candidates.label)
        by_votes = scores.offsets, scores.label, scores.score
        by_logits = candidates.offsets, candidates.label, candidates.logit
        return ScoredLabels(*kernels.order_labels(*by_votes, *by_logits, limit))

    def correct(
        self,
        candidates: RankedCandidates,
        corrections: Corrections,
        vectors: Float[np.ndarray, "query dim"],
        temperature: float,
    ) -> RankedCandidates:
        """Lower the logits of the candidates that have corrections."""
        terms = np.zeros(len(candidates.logit))
        corrected = corrections.find(vectors, candidates.query, candidates.label, temperature)
        terms[corrected.place] = np.log(np.maximum(corrected.factor, _LEAST_FACTOR))
        return dataclasses.replace(candidates, logit=candidates.logit + terms, corrections=terms)

    def explain(self, query: int, label: int, candidates: RankedCandidates) -> list[LogitTerm]:
        """The terms of a label's logit, the greatest first; empty for a label that is no candidate."""
        start, stop = candidates.offsets[query : query + 2]
        rows = start + np.flatnonzero(candidates.label[start:stop] == label)
        if not len(rows):
            return []
        features = candidates.features[rows]
        model, names = self.model, [*ALL_FEATURES, "bias"]
        if candidates.reranked[query]:
            assert self.cross is not None
            model, names = self.cross.model, [*FEATURES, "bias"]
        else:  # without the feature of the cross-encoder, which other queries may have
            features = features[:, : len(ALL_FEATURES)]
        values = [None if np.isnan(value) else float(value) for value in features[0]]
        terms = [*map(LogitTerm, names, [*values, None], model.contributions(features)[0].tolist())]
        if candidates.corrections is not None:
            terms.append(LogitTerm("correction", None, float(candidates.corrections[rows[0]])))
        return sorted((term for term in terms if term.log_odds), key=lambda term: -abs(term.log_odds))
