from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from recollect.core.bundle.manifest import IndexInfo
from recollect.core.search.searcher import KeyIndex, OpenIndex
from recollect.index_builder.faiss_index import KeysToIndex, build_index, write_index
from recollect.index_builder.recall import exact_neighbours
from tests.index_builder.vectors import recall_of, unit

# Factory strings of all kinds of faiss indexes that the service supports: transforms, refinements, lists, graphs and
# flat codes.
FACTORIES = [
    *["Flat", "SQ8", "RaBitQ4", "PCA24,SQ8", "PQ16x4fs,Refine(SQ8)", "IVF40,Flat", "IVF40,SQ8", "IVF40,PQ16x4fs"],
    *["IVF40,RaBitQ", "IVF40,RaBitQ4", "IVF40,RaBitQfs,RFlat", "IVF40,PQ16x4fs,Refine(SQ8)", "IVF40_HNSW32,SQ8"],
    *["PCA24,IVF40,SQ8", "RR32,IVF40,RaBitQ4", "OPQ16,IVF40,PQ16x4fs,RFlat", "HNSW16", "HNSW16,SQ8"],
    *["HNSW16,SQ8,Refine(Flat)", "PCA24,HNSW16,SQ8"],
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
