"""Features: the properties of a candidate label from which the ranker's model computes its logit.

The same code computes the features when the ranker is fitted and when a query is answered. A property that does not
exist is NaN, for example the similarity of the nearest voting instance if no instance votes for the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int

from recollect.service.ranking.candidates import Candidates
from recollect.service.ranking.names import Names

# The features, in the order of their columns.
FEATURES = (
    "votes",  # the score: votes of all keys (Eq. 7)
    "votes_of_best",  # divided by the score of the query's best label
    "instance_votes",  # weights of the voting instances
    "instance_count",  # number of instances that vote for the label
    "instance_share",  # divided by the label's number of training instances
    "instance_place",  # place of the nearest voting instance, from 0
    "instance_similarity",  # similarity of the nearest voting instance
    "instance_mean",  # mean similarity of the voting instances
    "instance_gap",  # similarity of the query's nearest instance minus that of the nearest voting instance
    "nearest_instance",  # similarity of the query's nearest instance
    "label_votes",  # weight of the label's key
    "label_similarity",  # similarity of the label's key
    "label_place",  # place of the label among the nearest labels
    "label_gap",  # similarity of the query's nearest label minus that of this label
    "training_count",  # number of training instances of the label
    "name_words",  # number of words of the label's name
    "name_share",  # share of these words that are in the query
    "name_place",  # place in the query at which the whole name begins
)
WORD_FEATURES = (
    "word_instance_votes",  # as above, for instances that share words with the query
    "word_instance_count",
    "word_instance_place",
    "word_instance_similarity",
    "word_instance_gap",
    "word_label_similarity",  # as above, for labels whose names share words with the query
    "word_label_place",
    "word_label_gap",
)


class IntegerArray(Protocol):
    """Integers by position."""

    def __getitem__(self, positions: Int[np.ndarray, " position"], /) -> Int[np.ndarray, " position"]: ...


@dataclass(frozen=True)
class LabelFacts:
    """Properties of the labels that do not depend on a query.

    Attributes:
        counts: Number of training instances of each label.
        names: The words of each label's text.
    """

    counts: IntegerArray
    names: Names


def compute_features(
    candidates: Candidates, queries: Sequence[str], facts: LabelFacts
) -> dict[str, Float[np.ndarray, " candidate"]]:
    """Compute all features of the candidates. Without a lexical index, the features of `WORD_FEATURES` are absent.

    Args:
        candidates: The candidates of the queries.
        queries: The texts of the queries.
        facts: Properties of the labels.
    """
    counts, nearest = facts.counts[candidates.label], candidates.nearest
    instances, labels = candidates.support["instances"], candidates.support["labels"]
    overlap = facts.names.overlap(queries, candidates.query, candidates.label)
    features = {
        "votes": candidates.score,
        "votes_of_best": candidates.score / np.maximum(candidates.best_score, np.finfo(np.float64).tiny),
        "instance_votes": instances.weight,
        "instance_count": instances.count,
        "instance_share": instances.count / np.maximum(counts, 1),
        "instance_place": instances.best_place,
        "instance_similarity": instances.best_similarity,
        "instance_mean": instances.similarity_sum / np.where(instances.count, instances.count, np.nan),
        "instance_gap": nearest["instances"] - instances.best_similarity,
        "nearest_instance": nearest["instances"],
        "label_votes": labels.weight,
        "label_similarity": labels.best_similarity,
        "label_place": labels.best_place,
        "label_gap": nearest["labels"] - labels.best_similarity,
        "training_count": counts,
        "name_words": overlap.words,
        "name_share": overlap.share,
        "name_place": overlap.place,
    }
    if "instance_words" in candidates.support:
        instances, labels = candidates.support["instance_words"], candidates.support["label_words"]
        features |= {
            "word_instance_votes": instances.weight,
            "word_instance_count": instances.count,
            "word_instance_place": instances.best_place,
            "word_instance_similarity": instances.best_similarity,
            "word_instance_gap": nearest["instance_words"] - instances.best_similarity,
            "word_label_similarity": labels.best_similarity,
            "word_label_place": labels.best_place,
            "word_label_gap": nearest["label_words"] - labels.best_similarity,
        }
    return features
