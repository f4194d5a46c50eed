"""The ranker: orders the labels of a query by their log-odds of being true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from recollect.service.bundle.bundle import Bundle
from recollect.service.bundle.files import RANKER
from recollect.service.bundle.values import Values
from recollect.service.errors import BundleError
from recollect.service.predictor.scoring import Ranking
from recollect.service.ranking.candidates import (
    ALL_FEATURES,
    Candidates,
    LabelFacts,
    Searches,
    find_candidates,
)
from recollect.service.ranking.model import RankerModel
from recollect.service.ranking.names import Names


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
    """Computes the log-odds of candidates from the evidence of all searches.

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
        searches: Searches,
        votes: Ranking,
        admits: Bool[np.ndarray, " label"] | None = None,
    ) -> RankedCandidates:
        """Find the candidates of some queries and compute their log-odds.

        Args:
            queries: The texts of the queries.
            searches: The keys that the searches found for the queries.
            votes: The votes of all keys (Eq. 7).
            admits: Whether a label may be a candidate; None admits all labels.
        """
        candidates = find_candidates(queries, searches, votes, self._values, self.facts, admits)
        features = candidates.features[:, self._columns]
        return RankedCandidates(candidates, features, self.model.logits(features))


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
