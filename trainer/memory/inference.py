"""RAE inference in the trainer: predictions for many values of lambda, tau and b from one search.

The caller searches the b nearest instances and the b nearest labels of each query. These two lists determine the
predictions for every lambda, every tau and every smaller b. The scores are those of `recollect.core.scoring`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from scipy import sparse

from recollect.core.bundle.values import Matrix, Values
from recollect.core.neighbours import Found, Neighbours
from recollect.core.options import Voting
from recollect.core.scoring import score_labels, weigh
from recollect.trainer.data.split import LabelSets


class InferenceSetting(NamedTuple):
    """One choice of lambda, tau and b."""

    lambda_: float
    temperature: float
    top_b: int


def predict(
    instances: Neighbours,
    labels: Neighbours,
    values: sparse.csr_matrix,
    settings: Sequence[InferenceSetting],
    depth: int,
    filtered: sparse.csr_matrix | None = None,
) -> Iterator[tuple[InferenceSetting, Int[np.ndarray, "query depth"]]]:
    """Yield the best labels of every query for every setting. -1 fills the list if fewer labels have votes.

    Args:
        instances: The nearest instances of each query: as many as the largest b, or all instances.
        labels: The nearest labels of each query, by their positions: as many as the largest b, or all labels.
        values: The relevance matrix Y, with the axes (instance, label).
        filtered: The labels that are removed from each query's ranking, with the axes (query, label). Their keys keep
            their place among the nearest keys. None: no label is removed.
    """
    votes, count = Values(Matrix(values.indptr, values.indices), values.shape[1]), values.shape[1]
    found = Found(instances, labels)
    removed = np.empty(0, np.int64) if filtered is None else LabelSets.of(filtered).codes(count)
    weigh_once = lru_cache(1)(lambda how: weigh(found, how, votes))
    for setting in settings:
        inside = 0 < setting.lambda_ < 1  # the same keys vote, with the same weights, for every such lambda
        keys = weigh_once(Voting(0.5 if inside else setting.lambda_, *setting[1:]))
        scores = score_labels(keys, setting.lambda_, votes)
        kept = scores.score > 0
        if len(removed):
            kept &= ~np.isin(scores.query * np.int64(count) + scores.label, removed)
        ranking = scores.where(kept).best(depth)
        best = np.full((len(labels.keys), depth), -1, dtype=np.int64)
        best[ranking.query, np.arange(len(ranking.label)) - ranking.offsets[ranking.query]] = ranking.label
        yield setting, best
