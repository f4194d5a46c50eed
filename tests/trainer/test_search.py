from __future__ import annotations

import numpy as np
import pytest

from recollect.trainer.memory import search
from recollect.trainer.memory.search import nearest, nearest_among, nearest_approximate
from tests.trainer.helpers import random_units, unit

# `cpu:0` runs the torch search, which GPUs use, on the CPU.
DEVICES = ("cpu", "cpu:0")


def brute_force(queries: np.ndarray, keys: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    similarities = queries.astype(np.float64) @ keys.astype(np.float64).T
    rows = np.argsort(-similarities, axis=1)[:, :top]
    return np.take_along_axis(similarities, rows, axis=1), rows


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("top", [5, 40])
def test_nearest_keys_equal_those_of_a_full_sort(device: str, top: int) -> None:
    rng = np.random.default_rng(top)
    queries, keys = random_units(rng, 33), random_units(rng, 40)
    similarities, rows = nearest(queries, keys, top, device)
    expected_similarities, expected_rows = brute_force(queries, keys, top)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(similarities, expected_similarities, atol=1e-6)


@pytest.mark.parametrize(("queries", "similarities"), [(7, 1 << 28), (4_096, 20)])
@pytest.mark.parametrize("device", DEVICES)
def test_queries_of_several_blocks_keep_their_order(
    device: str, queries: int, similarities: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_BLOCK_QUERIES", queries)
    monkeypatch.setattr(search, "_BLOCK_SIMILARITIES", similarities)
    rng = np.random.default_rng(2)
    many, keys = random_units(rng, 50), random_units(rng, 6)
    _, rows = nearest(many, keys, 1, device)
    np.testing.assert_array_equal(rows, brute_force(many, keys, 1)[1])


@pytest.mark.parametrize(("chunk", "top"), [(3, 5), (7, 40)])
def test_gpu_search_in_chunks_of_keys_equals_a_full_sort(chunk: int, top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    queries, keys = random_units(rng, 9), random_units(rng, 20)
    monkeypatch.setattr(search, "_GPU_NUMBERS", chunk * keys.shape[1])
    _, rows = nearest(queries, keys, top, "cpu:0")
    np.testing.assert_array_equal(rows, brute_force(queries, keys, top)[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("chunk", "top"), [(7, 1), (4, 5), (100, 40)])
def test_nearest_among_returns_only_keys_of_the_given_rows(
    device: str, chunk: int, top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_BLOCK_KEYS", chunk)
    rng = np.random.default_rng(top)
    queries, keys = random_units(rng, 9), random_units(rng, 40)
    some = np.sort(rng.choice(40, size=21, replace=False))
    similarities, rows = nearest_among(queries, keys, some, top, device)
    expected_similarities, places = brute_force(queries, keys[some], top)
    np.testing.assert_array_equal(rows, some[places])
    np.testing.assert_allclose(similarities, expected_similarities, atol=1e-6)


@pytest.mark.parametrize(("keys", "top"), [(1, 3), (39, 100), (77, 3)])
def test_approximate_search_finds_the_exact_result_among_few_keys(keys: int, top: int) -> None:
    rng = np.random.default_rng(keys)
    queries, vectors = random_units(rng, 10), random_units(rng, keys)
    similarities, rows = nearest_approximate(queries, vectors, top)
    expected_similarities, expected_rows = brute_force(queries, vectors, top)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(similarities, expected_similarities, atol=1e-6)


def test_approximate_search_finds_most_keys_of_clustered_data() -> None:
    rng = np.random.default_rng(4)
    topics = random_units(rng, 80, 32)
    keys = unit(np.repeat(topics, 40, axis=0) + 0.1 * rng.standard_normal((3_200, 32)))
    queries = unit(topics + 0.1 * rng.standard_normal((80, 32)))
    similarities, rows = nearest_approximate(queries, keys, 10)
    _, expected = brute_force(queries, keys, 10)
    common = sum(len(set(a.tolist()) & set(b.tolist())) for a, b in zip(rows, expected, strict=True))
    assert common > 0.9 * expected.size
    assert (np.diff(similarities, axis=1) <= 0).all()


def test_approximate_search_fills_the_result_with_minus_one_if_it_finds_too_few_keys() -> None:
    rng = np.random.default_rng(5)
    similarities, rows = nearest_approximate(random_units(rng, 4), random_units(rng, 600), 600)
    assert (rows == -1).any()
    assert (similarities[rows == -1] == -np.inf).all()
    assert np.isfinite(similarities[rows >= 0]).all()
