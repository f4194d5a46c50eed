from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index_builder.faiss_index import build_index, exact_bars, recall, write_index
from service.bundle import open_bundle
from service.manifest import IndexInfo
from service.searcher import KeyIndex, Neighbours, Searcher, merge

INSTANCES, LABELS, DIM = 60, 25, 8


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def exact(queries: np.ndarray, keys: np.ndarray, top_b: int) -> tuple[np.ndarray, np.ndarray]:
    """The joint top b; at equal similarity the key of the lower row comes first."""
    similarities = queries @ keys.T
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :top_b]
    return np.take_along_axis(similarities, order, axis=1), order


def top(similarities: np.ndarray, first_key: int, top_b: int) -> Neighbours:
    """What an exact index finds: its best keys, and -1 where it has fewer than b."""
    best, order = exact(similarities, np.eye(similarities.shape[1]), top_b)
    missing = top_b - best.shape[1]
    pad = ((0, 0), (0, max(0, missing)))
    return Neighbours(np.pad(best, pad, constant_values=-np.inf), np.pad(first_key + order, pad, constant_values=-1))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), first=st.integers(1, 12), second=st.integers(1, 12), top_b=st.integers(1, 30))
def test_two_lists_merge_into_the_exact_joint_top_b(seed: int, first: int, second: int, top_b: int) -> None:
    similarities = np.random.default_rng(seed).integers(-2, 3, size=(4, first + second)) / 2.0  # full of ties
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
    return Searcher(open_bundle(bundle))


@pytest.mark.parametrize("top_b", [1, 7, 40, 85, 500])
@pytest.mark.parametrize(
    ("lambda_", "part"),
    [(0.0, slice(INSTANCES, None)), (1e-9, slice(None)), (0.5, slice(None)), (1.0, slice(INSTANCES))],
)
def test_the_part_that_lambda_gives_a_vote_is_searched_exactly(
    searcher: Searcher, memory: tuple[np.ndarray, np.ndarray], lambda_: float, part: slice, top_b: int
) -> None:
    keys, queries = memory
    similarities, rows = exact(queries, keys[part], top_b)
    found = searcher.search(queries, top_b, lambda_)
    np.testing.assert_array_equal(found.keys, rows + (part.start or 0))
    np.testing.assert_allclose(found.similarities, similarities, atol=1e-6)


def test_keys_are_counted_over_both_parts(searcher: Searcher) -> None:
    assert (searcher.keys, searcher.instances.keys, searcher.labels.shape) == (85, INSTANCES, (LABELS, DIM))


@pytest.fixture(scope="module")
def clustered() -> tuple[np.ndarray, np.ndarray]:
    """2,000 unit keys around 50 centres, and 40 queries near keys."""
    rng = np.random.default_rng(1)
    keys = unit(rng.normal(size=(50, 32))[rng.integers(50, size=2000)] + rng.normal(size=(2000, 32)) / 2)
    return keys, unit(keys[:40] + rng.normal(size=(40, 32)) / 20)


def open_index(keys: np.ndarray, kind: str, path: Path, effort: int | None = None) -> KeyIndex:
    index, info = build_index(keys, kind, 0, lambda _: None)
    write_index(index, path)
    return KeyIndex(path, info if effort is None else IndexInfo(kind=info.kind, keys=info.keys, effort=effort))


@pytest.mark.parametrize(("kind", "least"), [("flat", 1.0), ("hnsw", 0.9), ("ivf", 0.7)])
def test_every_kind_of_index_finds_most_of_the_exact_keys(
    tmp_path: Path, clustered: tuple[np.ndarray, np.ndarray], kind: str, least: float
) -> None:
    keys, queries = clustered
    index = open_index(keys, kind, tmp_path / "index.faiss")
    assert recall(index, keys, queries, exact_bars(keys, queries, 20), 20) >= least
    found = index.search(queries, 20)
    assert (np.diff(found.similarities, axis=1) <= 0).all()
    assert (found.keys[:, 0] == np.arange(40)).mean() >= least


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_a_search_goes_at_least_as_far_as_b_whatever_the_effort(
    tmp_path: Path, clustered: tuple[np.ndarray, np.ndarray], kind: str
) -> None:
    keys, queries = clustered
    index = open_index(keys, kind, tmp_path / "index.faiss", effort=1)
    assert (index.search(queries, 300).keys >= 0).sum(axis=1).min() >= 150
    everything = index.search(queries, 10_000).keys
    assert everything.shape == (40, 2000)
    assert (everything >= 0).mean() >= (1.0 if kind == "ivf" else 0.99)


def test_a_list_shorter_than_b_is_padded_with_no_key_at_no_similarity(
    tmp_path: Path, clustered: tuple[np.ndarray, np.ndarray]
) -> None:
    keys, queries = clustered
    found = open_index(keys, "ivf", tmp_path / "index.faiss", effort=1).search(queries, 60)
    missing = found.keys == -1
    assert missing.any()
    assert (found.similarities[missing] == -np.inf).all()
    assert np.isfinite(found.similarities[~missing]).all()
