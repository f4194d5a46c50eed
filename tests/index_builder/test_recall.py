"""Measurements of an index: recall, search time, and the share of reachable keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from recollect.core.search.searcher import unwrapped
from recollect.index_builder.faiss_index import KeysToIndex, build_index
from recollect.index_builder.recall import exact_neighbours, reachable_share
from tests.index_builder.vectors import opened, random_keys, recall_of


@pytest.mark.parametrize("block", [7, 64, 1_000])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exact_neighbours_equal_a_float64_brute_force(monkeypatch: pytest.MonkeyPatch, block: int, dtype: str) -> None:
    monkeypatch.setattr("recollect.trainer.memory.search._BLOCK_KEYS", block)
    keys, queries = random_keys(300, dtype=dtype), random_keys(320)[300:]
    similarities = queries.astype(np.float64) @ keys.astype(np.float64).T
    expected = np.argsort(-similarities, axis=1)[:, :25]
    found = exact_neighbours(keys, queries, 25)
    np.testing.assert_array_equal(found.keys, expected)
    np.testing.assert_allclose(found.similarities, np.take_along_axis(similarities, expected, axis=1), atol=1e-6)


def test_recall_equals_the_share_of_exact_keys_that_an_index_contains(tmp_path: Path) -> None:
    keys = random_keys(40)
    half = opened(keys[:20], "flat", tmp_path)
    expected = (np.argsort(-(keys @ keys.T), axis=1)[:, :10] < 20).mean()
    assert 0 < expected < 1
    assert recall_of(half, keys, keys, exact_neighbours(keys, keys, 10)) == pytest.approx(expected)


def test_key_as_similar_as_the_last_exact_neighbour_counts_as_found(tmp_path: Path) -> None:
    keys = np.repeat(random_keys(4), 5, axis=0)  # five copies of each key
    index = opened(keys[::-1].copy(), "flat", tmp_path)  # the index returns equal keys in the opposite order
    exact = exact_neighbours(keys, keys[::5], 3)
    assert not np.isin(exact.keys, 19 - index.search(keys[::5], 3).keys).all()
    assert recall_of(index, keys[::-1], keys[::5], exact) == 1


# Reachable keys.


def graph_of(links: dict[int, list[int]], entry: int, factory: str = "HNSW8") -> Any:
    """A graph over 40 keys with exactly these links on its lowest level."""
    index, _ = build_index(KeysToIndex(random_keys(40)), factory)
    hnsw = unwrapped(index).hnsw
    neighbours = faiss.rev_swig_ptr(hnsw.neighbors.data(), hnsw.neighbors.size())
    first = faiss.vector_to_array(hnsw.offsets).astype(int)
    for key in range(40):
        row = neighbours[first[key] : first[key] + hnsw.nb_neighbors(0)]
        row[:] = -1
        row[: len(links.get(key, []))] = links.get(key, [])
    hnsw.entry_point = entry
    return index


@pytest.mark.parametrize("block", [1, 3, 1_000])
@pytest.mark.parametrize("factory", ["HNSW8", "HNSW8,SQ8", "PCA8,HNSW8", "HNSW8,SQ8,Refine(Flat)"])
def test_keys_that_links_connect_to_the_entry_point_are_reachable(
    monkeypatch: pytest.MonkeyPatch, factory: str, block: int
) -> None:
    monkeypatch.setattr("recollect.index_builder.recall._FOLLOWED_KEYS", block)
    chain = {key: [key + 1] for key in range(39)}
    assert reachable_share(graph_of(chain, 0, factory)) == 1
    assert reachable_share(graph_of(chain, 30, factory)) == 10 / 40
    star = {7: [1, 2, 3, 4, 5, 6], 5: [7, 5, 20, 21], 21: [1], 39: list(range(8))}  # no link leads to key 39
    assert reachable_share(graph_of(star, 7, factory)) == 9 / 40
    assert reachable_share(graph_of({}, 39, factory)) == 1 / 40
