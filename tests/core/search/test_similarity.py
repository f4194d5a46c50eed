"""The similarity to a chosen key equals the similarity that a search reports, for every kind of index."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from recollect.core.search.searcher import KeyIndex
from tests.core.search.test_searcher import FACTORIES
from tests.index_builder.vectors import clustered_keys, near, opened

KEYS = clustered_keys(2_000)
QUERIES = near(KEYS, 3)
# Tolerance for codes whose similarities a search rounds.
ROUNDED = {"PQ16x4fs": 0.02}


@pytest.fixture(scope="module", params=[*FACTORIES, "PQ16x4fs", "RaBitQ", "RaBitQfs", "NSG16", "IVF40,PQ16x4"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, KeyIndex]:
    return request.param, opened(KEYS, request.param, tmp_path_factory.mktemp("index"))


def test_computed_similarities_equal_the_similarities_that_a_search_reports(index: tuple[str, KeyIndex]) -> None:
    factory, opened_index = index
    exhaustive = opened_index.at(opened_index.info.model_copy(update={"effort": 2_000}))
    rows = np.arange(0, 2_000, 3)
    for query in QUERIES:
        found = exhaustive.search(query[None], 2_000)
        known = found.keys[0] >= 0
        expected = np.full(2_000, np.nan, dtype=np.float32)
        expected[found.keys[0, known]] = found.similarities[0, known]
        similarities = opened_index.similarities(query, rows)
        reached = np.isfinite(expected[rows])  # a search reaches all keys, except in a graph
        assert reached.mean() > 0.99
        np.testing.assert_allclose(similarities[reached], expected[rows][reached], atol=ROUNDED.get(factory, 1e-5))


def test_concurrent_first_calls_give_equal_similarities(tmp_path: Path) -> None:
    index, rows = opened(KEYS, "IVF40,SQ8", tmp_path), np.arange(2_000)
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(lambda _: index.similarities(QUERIES[0], rows), range(8))
    for other in others:
        np.testing.assert_array_equal(other, first)
