from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.core.bundle.bundle import open_bundle
from recollect.core.bundle.manifest import IndexInfo
from recollect.core.neighbours import Neighbours, merge
from recollect.core.search.searcher import KeyIndex, OpenIndex, Searcher
from recollect.index_builder.faiss_index import KeysToIndex, build_index, write_index
from recollect.index_builder.recall import exact_neighbours
from tests.index_builder.vectors import recall_of

INSTANCES, LABELS, DIM = 60, 25, 8


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def exact(queries: np.ndarray, keys: np.ndarray, top_b: int) -> tuple[np.ndarray, np.ndarray]:
    """The b best keys of both indexes; keys with equal similarity are sorted by row."""
    similarities = queries @ keys.T
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :top_b]
    return np.take_along_axis(similarities, order, axis=1), order


def top(similarities: np.ndarray, first_key: int, top_b: int) -> Neighbours:
    """The result of an exact search in one index: its best keys, and -1 for missing keys."""
    best, order = exact(similarities, np.eye(similarities.shape[1]), top_b)
    missing = top_b - best.shape[1]
    pad = ((0, 0), (0, max(0, missing)))
    return Neighbours(np.pad(best, pad, constant_values=-np.inf), np.pad(first_key + order, pad, constant_values=-1))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), first=st.integers(1, 12), second=st.integers(1, 12), top_b=st.integers(1, 30))
def test_results_of_both_indexes_are_merged_into_the_exact_top_b_keys(
    seed: int, first: int, second: int, top_b: int
) -> None:
    similarities = np.random.default_rng(seed).integers(-2, 3, size=(4, first + second)) / 2.0  # with many ties
    merged = merge(top(similarities[:, :first], 0, top_b), top(similarities[:, first:], first, top_b), top_b)
    expected = top(similarities, 0, top_b)
    np.testing.assert_array_equal(merged.keys, expected.keys)
    np.testing.assert_array_equal(merged.similarities, expected.similarities)


@pytest.fixture(scope="module")
def memory() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return unit(rng.normal(size=(INSTANCES + LABELS, DIM))), unit(rng.normal(size=(5, DIM)))


@pytest.fixture(scope="module")
def searcher(
    memory: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory, write_bundle: Callable[..., Path]
) -> Searcher:
    keys, folder = memory[0], tmp_path_factory.mktemp("searcher") / "bundle"
    bundle = write_bundle(folder, instance_keys=keys[:INSTANCES], label_keys=keys[INSTANCES:], votes=[[]] * INSTANCES)
    return Searcher.open(open_bundle(bundle))


@pytest.mark.parametrize("top_b", [1, 7, 40, 85, 500])
@pytest.mark.parametrize(
    ("lambda_", "part"),
    [(0.0, slice(INSTANCES, None)), (1e-9, slice(None)), (0.5, slice(None)), (1.0, slice(INSTANCES))],
)
def test_lambda_1_searches_only_instances_and_lambda_0_only_labels(
    searcher: Searcher, memory: tuple[np.ndarray, np.ndarray], lambda_: float, part: slice, top_b: int
) -> None:
    keys, queries = memory
    similarities, rows = exact(queries, keys[part], top_b)
    found = searcher.search(queries, top_b, lambda_).nearest(top_b, lambda_, INSTANCES)
    np.testing.assert_array_equal(found.keys, rows + (part.start or 0))
    np.testing.assert_allclose(found.similarities, similarities, atol=1e-6)


# Factory strings of all kinds of faiss indexes that the service supports: transforms, refinements, lists, graphs and
# flat codes.
FACTORIES = [
    "Flat",
    "SQ8",
    "RaBitQ4",
    "PCA24,SQ8",
    "PQ16x4fs,Refine(SQ8)",
    "IVF40,Flat",
    "IVF40,SQ8",
    "IVF40,PQ16x4fs",
    "IVF40,RaBitQ",
    "IVF40,RaBitQ4",
    "IVF40,RaBitQfs,RFlat",
    "IVF40,PQ16x4fs,Refine(SQ8)",
    "IVF40_HNSW32,SQ8",
    "PCA24,IVF40,SQ8",
    "RR32,IVF40,RaBitQ4",
    "OPQ16,IVF40,PQ16x4fs,RFlat",
    "HNSW16",
    "HNSW16,SQ8",
    "HNSW16,SQ8,Refine(Flat)",
    "PCA24,HNSW16,SQ8",
]


class Built(NamedTuple):
    """An index of the clustered keys, written to a file."""

    path: Path
    info: IndexInfo

    def opened(self, **changes: float) -> KeyIndex:
        """The same index, opened with another search effort."""
        return KeyIndex(OpenIndex(self.path), self.info.model_copy(update=changes))


@pytest.fixture(scope="module")
def clustered() -> tuple[np.ndarray, np.ndarray]:
    """2,000 unit keys around 50 centres, and 40 queries near some keys."""
    rng = np.random.default_rng(1)
    keys = unit(rng.normal(size=(50, 32))[rng.integers(50, size=2000)] + rng.normal(size=(2000, 32)) / 2)
    return keys, unit(keys[:40] + rng.normal(size=(40, 32)) / 20)


@pytest.fixture(scope="module")
def build(clustered: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Builds an index of synthetic clustered keys. All tests share one index of each kind."""
    folder = tmp_path_factory.mktemp("indexes")

    @functools.cache
    def build(kind: str) -> Built:
        index, info = build_index(KeysToIndex(clustered[0]), kind)
        write_index(index, folder / f"{kind}.faiss")
        return Built(folder / f"{kind}.faiss", info)

    return build


@pytest.mark.parametrize(("kind", "least"), [("flat", 1.0), ("hnsw", 0.9), ("ivf", 0.7)])
def test_every_kind_of_index_finds_most_of_the_exact_keys(
    build: Callable[[str], Built], clustered: tuple[np.ndarray, np.ndarray], kind: str, least: float
) -> None:
    keys, queries = clustered
    index = build(kind).opened()
    assert recall_of(index, keys, queries, exact_neighbours(keys, queries, 20)) >= least
    found = index.search(queries, 20)
    assert (np.diff(found.similarities, axis=1) <= 0).all()
    assert (found.keys[:, 0] == np.arange(40)).mean() >= least


@pytest.mark.parametrize(
    "factory",
    ["IVF40,Flat", "IVF40,SQ8", "IVF40_HNSW32,SQ8", "IVF40,PQ16x4fs,Refine(SQ8)", "OPQ16,IVF40,PQ16x4fs,RFlat"]
    + ["HNSW16", "HNSW16,SQ8", "HNSW16,SQ8,Refine(Flat)"],  # with coarser codes, recall can decrease
)
def test_recall_increases_with_search_effort(
    build: Callable[[str], Built], clustered: tuple[np.ndarray, np.ndarray], factory: str
) -> None:
    (keys, queries), built = clustered, build(factory)
    exact = exact_neighbours(keys, queries, 20)
    little, some, much = (
        recall_of(built.opened(effort=effort, refine=8 if built.info.refine > 1 else 1), keys, queries, exact)
        for effort in ((20, 40, 200) if built.info.kind == "hnsw" else (1, 3, 20))
    )
    assert little <= some <= much


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_search_finds_b_keys_at_any_search_effort(
    build: Callable[[str], Built], clustered: tuple[np.ndarray, np.ndarray], kind: str
) -> None:
    assert (build(kind).opened(effort=1).search(clustered[1], 300).keys >= 0).sum(axis=1).min() >= 150


def test_result_with_fewer_than_b_keys_is_padded_with_missing_keys(
    build: Callable[[str], Built], clustered: tuple[np.ndarray, np.ndarray]
) -> None:
    found = build("ivf").opened(effort=1).search(clustered[1], 60)
    missing = found.keys == -1
    assert missing.any()
    assert (found.similarities[missing] == -np.inf).all()
    assert np.isfinite(found.similarities[~missing]).all()
