"""The words of labels' names in queries."""

from __future__ import annotations

import numpy as np

from recollect.service.ranking.names import Names

NAMES = Names.of(["Income tax", "Tax", "Value added tax", "!?", "Garden chair"])


def overlap(query: str) -> tuple[list[float], list[float]]:
    labels = np.arange(5)
    found = NAMES.overlap([query], np.zeros(5, dtype=np.int64), labels)
    return found.share.tolist(), found.place.tolist()


def test_share_and_place_of_names_in_a_query() -> None:
    share, place = overlap("The INCOME-tax on added value")
    np.testing.assert_array_equal(share, [1, 1, 1, np.nan, 0])
    np.testing.assert_array_equal(place, [1, 2, np.nan, np.nan, np.nan])  # "value added tax" is not in this order


def test_each_candidate_is_compared_with_its_own_query() -> None:
    found = NAMES.overlap(["no", "garden chair", "tax"], np.array([0, 1, 1, 2]), np.array([4, 1, 4, 1]))
    assert found.share.tolist() == [0, 0, 1, 1]
    assert found.words.tolist() == [2, 1, 2, 1]
