"""The words of labels' names in queries."""

from __future__ import annotations

import numpy as np

from recollect.core.bundle.values import Matrix, Values
from recollect.core.neighbours import Found, Neighbours
from recollect.core.options import Voting
from recollect.core.reranker.candidates import ALL_FEATURES, find_candidates
from recollect.core.reranker.label_facts import LabelFacts
from recollect.core.scoring import weigh_keys
from recollect.core.words.names import Names
from recollect.core.words.terms import Words

NAMES = ["Income tax", "Tax", "Value added tax", "!?", "Garden chair"]
VALUES = Values(Matrix.empty(np.int32), len(NAMES))


def overlap(names: Names, queries: list[str], labels: list[list[int]]) -> list[list[float]]:
    """Number of words, share and place of the name of each query's labels, label by label."""
    keys = np.array(labels)
    found = Neighbours(np.full(keys.shape, 0.5, dtype=np.float32), keys)
    nothing = Neighbours(found.similarities[:, :0], keys[:, :0])
    facts = LabelFacts(np.ones(len(NAMES), dtype=np.int32), names)
    candidates = find_candidates(
        Words.of(queries), Found(nothing, found), weigh_keys(found, 1.0, VALUES), Voting(0.0, 1.0, 1), VALUES, facts
    )
    rows = dict(zip(zip(candidates.query, candidates.label, strict=True), candidates.features, strict=True))
    first = ALL_FEATURES.index("name_words")
    return [rows[query, label][first : first + 3].tolist() for query, own in enumerate(labels) for label in own]


def test_share_and_place_of_names_in_a_query() -> None:
    found = overlap(Names.of(NAMES), ["The INCOME-tax on added value"], [[0, 1, 2, 3, 4]])
    expected = [[2, 1, 1], [1, 1, 2], [3, 1, np.nan], [0, np.nan, np.nan], [2, 0, np.nan]]
    np.testing.assert_array_equal(found, expected)  # "value added tax" is not in this order


def test_each_candidate_is_compared_with_its_own_query() -> None:
    found = overlap(Names.of(NAMES), ["no", "garden chair", "tax"], [[4, 1]] * 3)
    assert [share for _, share, _ in found] == [0, 0, 1, 0, 0, 1]


def test_live_names_are_compared_as_those_of_the_bundle_are() -> None:
    names = Names(
        Names.of(NAMES[:2]).bundle_names,
        Names.of(["Chair", "Added tax"]).bundle_names,
        np.array([0, 3, 2, 1, 1], np.int32),
    )
    found = overlap(names, ["added tax"], [[0, 1, 2, 3]])
    np.testing.assert_array_equal(found, [[2, 0.5, np.nan], [2, 1, 0], [1, 0, np.nan], [1, 1, 1]])
