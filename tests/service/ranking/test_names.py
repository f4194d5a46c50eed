"""The words of labels' names in queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.service.errors import BundleError
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


def test_first_occurrence_of_a_name_counts() -> None:
    assert overlap("tax income tax")[1][:2] == [1, 0]


def test_query_without_words_contains_no_name() -> None:
    share, place = overlap("...")
    np.testing.assert_array_equal(share, [0, 0, 0, np.nan, 0])
    assert np.isnan(place).all()


def test_only_the_first_words_of_a_long_query_are_compared() -> None:
    assert overlap("a " * 127 + "tax")[1][1] == 127
    assert np.isnan(overlap("a " * 128 + "tax")[1][1])


def test_each_candidate_is_compared_with_its_own_query() -> None:
    found = NAMES.overlap(["no", "garden chair", "tax"], np.array([0, 1, 1, 2]), np.array([4, 1, 4, 1]))
    assert found.share.tolist() == [0, 0, 1, 1]
    assert found.words.tolist() == [2, 1, 2, 1]


def test_names_are_mapped_from_files(tmp_path: Path) -> None:
    def open_file(function, name, *rest):  # type: ignore[no-untyped-def]
        return function(tmp_path / name, *rest)

    NAMES.write(tmp_path)
    opened = Names.open_with(open_file, 5)
    np.testing.assert_array_equal(opened.words, NAMES.words)
    np.testing.assert_array_equal(opened.offsets, NAMES.offsets)
    with pytest.raises(BundleError, match="name_offsets"):
        Names.open_with(open_file, 4)
