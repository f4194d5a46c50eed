"""The words of labels' names in queries."""

from __future__ import annotations

import numpy as np

from recollect.service import loops
from recollect.service.ranking.names import Names, query_words

NAMES = Names.of(["Income tax", "Tax", "Value added tax", "!?", "Garden chair"])


def overlap(queries: list[str], labels: list[int], offsets: list[int]) -> np.ndarray:
    """Number of words, share and place of the names of candidates; query i has those from `offsets[i]` on."""
    place, words = NAMES.gather(np.array(labels))
    ends = np.cumsum(np.bincount(place, minlength=len(labels)))
    features = np.full((len(labels), 18), np.nan, dtype=np.float32)
    counts = np.ones(len(labels), dtype=np.int64)
    names = np.concatenate([[0], ends]), words
    loops.add_label_features(features, np.array(offsets), counts, *names, *query_words(queries))
    return features[:, 15:].T


def test_share_and_place_of_names_in_a_query() -> None:
    _, share, place = overlap(["The INCOME-tax on added value"], [0, 1, 2, 3, 4], [0, 5])
    np.testing.assert_array_equal(share, [1, 1, 1, np.nan, 0])
    np.testing.assert_array_equal(place, [1, 2, np.nan, np.nan, np.nan])  # "value added tax" is not in this order


def test_each_candidate_is_compared_with_its_own_query() -> None:
    words, share, _ = overlap(["no", "garden chair", "tax"], [4, 1, 4, 1], [0, 1, 3, 4])
    assert share.tolist() == [0, 0, 1, 1]
    assert words.tolist() == [2, 1, 2, 1]
