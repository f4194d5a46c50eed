"""Candidates: the labels of a query that the ranker orders, and their features.

The candidates are the best labels by each of several measures: the votes of all keys (Eq. 7), the votes of instances
alone, the similarity of labels, and instances and labels found by words. A label that is good by one measure is a
candidate even if the other measures do not find it.

The same code computes the features when the ranker is fitted and when a query is answered. A property that does not
exist is NaN, for example the similarity of the nearest voting instance if no instance votes for the label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from recollect.core import kernels
from recollect.core.bundle.values import Values
from recollect.core.neighbours import Found, Neighbours
from recollect.core.options import Voting
from recollect.core.reranker.label_facts import LabelFacts
from recollect.core.scoring import WeightedKeys
from recollect.core.words.terms import Words

# Number of candidates of each query: by the votes of all keys, and by each other measure.
BY_VOTES, BY_OTHERS = 100, 40

# Number of words of a query, from its first word, that are compared with names. Encoders read about as many.
_NAME_WORDS = 128

# Only with the files of stems and of labels that occur together.
STEM_FEATURES = (
    "stem_share",  # share of the stems of the name that are in the query
    "stem_count",  # number of names with the rarest of these stems
    "stem_place",  # place in the query of the first of these stems
    "cooccurrence",  # votes for other candidates, each times the share of its instances that also have this label
)
CLASSIFIER = "classifier"
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
    *STEM_FEATURES,
    CLASSIFIER,  # score of the linear classifier of the label; NaN without one
)
# Only with a lexical index; without one, these features are NaN.
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
ALL_FEATURES = (*FEATURES, *WORD_FEATURES)
_CLASSIFIER = ALL_FEATURES.index(CLASSIFIER)


@dataclass(frozen=True)
class Candidates:
    """The candidates of a block of queries, in no particular order, with their features.

    Attributes:
        offsets: Query i has the candidates `offsets[i]` to `offsets[i + 1]`.
        features: Its features, in the order of `ALL_FEATURES`.
    """

    offsets: Int[np.ndarray, " offset"]
    label: Int[np.ndarray, " candidate"]
    features: Float[np.ndarray, "candidate feature"]

    @property
    def query(self) -> Int[np.ndarray, " candidate"]:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def find_candidates(
    words: Words,
    found: Found,
    voting: WeightedKeys,
    how: Voting,
    values: Values,
    facts: LabelFacts,
    admits: Bool[np.ndarray, " label"] | None = None,
    limits: tuple[int, int] = (BY_VOTES, BY_OTHERS),
) -> Candidates:
    """Choose the candidates of each query, among the admitted labels, and compute their features.

    Args:
        voting: The keys that vote (Eq. 7), without keys by words: the first instances and the first labels of the
            searches by vectors.
        limits: Number of candidates by votes, and by each other measure.
    """
    nothing = Neighbours.missing(len(words.offsets) - 1, 0)
    searches = (found.instances, found.labels, *(found.by_words or (nothing, nothing)))
    similarities, keys = zip(*(neighbours.arrays for neighbours in searches), strict=True)
    offsets, labels, features = kernels.find_candidates(
        (keys, similarities),
        (voting.keys, voting.weights, how.lambda_, how.temperature),
        values.arrays,
        values.live_log_counts,
        np.empty(0, dtype=np.bool_) if admits is None else admits,
        (facts.counts, *facts.names.arrays),
        facts.together.arrays,
        (words.offsets, words.hashes.view(np.int64), words.stems.view(np.int64)),
        (*limits, len(ALL_FEATURES), _NAME_WORDS, found.by_words is not None),
    )
    if facts.classifier is not None:
        features[:, _CLASSIFIER] = facts.classifier.scores(words, offsets, labels)
    return Candidates(offsets, labels, features)
