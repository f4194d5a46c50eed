"""Balanced clusters of planted and random vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.trainer import clustering
from recollect.trainer.clustering import balanced_clusters
from recollect.trainer.sharded import Sharded


def unit(vectors: np.ndarray) -> np.ndarray:
    normalised: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return normalised


def planted(clusters: int, size: int, noise: float, seed: int = 0, dim: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Return shuffled vectors around random directions, and the number of the direction of each vector."""
    random = np.random.default_rng(seed)
    own = random.permutation(np.repeat(np.arange(clusters), size))
    centres = unit(random.standard_normal((clusters, dim)))
    return unit(centres[own] + noise * unit(random.standard_normal((len(own), dim)))), own


def tightness(vectors: np.ndarray, clusters: np.ndarray) -> float:
    sums = np.zeros((clusters.max() + 1, vectors.shape[1]))
    np.add.at(sums, clusters, vectors)
    return float(np.linalg.norm(sums, axis=1).sum() / len(vectors))


def cluster(vectors: np.ndarray, clusters: int, seed: int = 0) -> np.ndarray:
    return balanced_clusters(Sharded.of(vectors), np.arange(len(vectors)), clusters, np.random.default_rng(seed))


@pytest.fixture(params=["at once", "from samples"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "from samples":
        monkeypatch.setattr(clustering, "_CHUNK_ROWS", 64)


@pytest.mark.usefixtures("either_way")
# With stored inner products, and with inner products computed in each round.
@pytest.mark.parametrize("size", [20, 200])
def test_planted_clusters_are_found(size: int) -> None:
    vectors, own = planted(2, size, 0.3)
    found = cluster(vectors, 2)
    assert len(set(zip(found.tolist(), own.tolist(), strict=True))) == 2


@settings(max_examples=25, deadline=None)
@given(data=st.data(), chunk=st.sampled_from([2, 5, 4_096]), seed=st.integers(0, 2**30))
def test_cluster_sizes_differ_by_at_most_one_for_any_number_of_clusters(
    data: st.DataObject, chunk: int, seed: int
) -> None:
    rows = data.draw(st.integers(1, 60))
    clusters = data.draw(st.integers(1, rows))
    vectors = unit(np.random.default_rng(seed).standard_normal((rows, 4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "_CHUNK_ROWS", chunk)
        sizes = np.bincount(cluster(vectors, clusters, seed), minlength=clusters)
    assert (len(sizes), sizes.sum()) == (clusters, rows)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("vectors", [np.zeros((300, 8)), np.full((300, 8), 8**-0.5)], ids=["zero", "all equal"])
@pytest.mark.parametrize("clusters", [7, 300])
def test_identical_vectors_are_distributed_evenly(vectors: np.ndarray, clusters: int) -> None:
    sizes = np.bincount(cluster(vectors.astype(np.float32), clusters), minlength=clusters)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.usefixtures("either_way")
def test_only_the_given_rows_are_clustered_and_the_result_is_in_their_order() -> None:
    vectors, own = planted(2, 200, 0.3)
    rows = np.concatenate([np.flatnonzero(own == side)[:100] for side in (0, 1)])
    rows = np.random.default_rng(1).permutation(rows)
    vectors = np.where(np.isin(np.arange(400), rows)[:, None], vectors, np.nan)
    found = balanced_clusters(Sharded.of(vectors), rows, 2, np.random.default_rng(0))
    assert len(set(zip(found.tolist(), own[rows].tolist(), strict=True))) == 2


def test_clusters_from_splits_by_sample_are_as_tight_as_clusters_of_all_vectors_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors, _ = planted(64, 64, 1.0)
    at_once = tightness(vectors, cluster(vectors, 64))
    monkeypatch.setattr(clustering, "_CHUNK_ROWS", 512)
    assert tightness(vectors, cluster(vectors, 64)) == pytest.approx(at_once, abs=0.03)
    shuffled = np.random.default_rng(0).permutation(cluster(vectors, 64))
    assert at_once > tightness(vectors, shuffled) + 0.15
