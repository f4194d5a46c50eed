"""Indexes over unit keys: exact, inverted lists, graph; what they find and what they refuse."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from index_builder.errors import BuildError
from index_builder.faiss_index import FLAT_KEYS, build_index, choose_kind, exact_bars, recall, tune_effort, write_index
from service.searcher import KeyIndex
from trainer.dataset import LabelSets
from trainer.label_keys import LabelKeys


def unit_vectors(rows: int, dim: int = 16, dtype: str = "float32") -> np.ndarray:
    vectors = np.random.default_rng(7).standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(dtype)


def enriched(labels: int) -> LabelKeys:
    """Label keys, half text and half instances: two instances a label, none for each seventh."""
    vectors, rows = unit_vectors(3 * labels, dtype="float16"), np.arange(2 * labels, dtype=np.int32) % labels
    kept = rows % 7 != 0
    sets = LabelSets(np.concatenate([[0], np.cumsum(kept)]), rows[kept])
    return LabelKeys(vectors[:labels], vectors[labels:], sets, 0.5)


def opened(keys: np.ndarray | LabelKeys, kind: str, folder: Path) -> KeyIndex:
    index, info = build_index(keys, kind, 0, lambda rows: None)
    write_index(index, folder / "keys.faiss")
    return KeyIndex(folder / "keys.faiss", info)


def test_auto_is_exact_for_few_keys_and_a_graph_for_many() -> None:
    assert [choose_kind("auto", keys) for keys in (1, FLAT_KEYS, FLAT_KEYS + 1)] == ["flat", "flat", "hnsw"]
    assert [choose_kind(kind, 10**7) for kind in ("flat", "ivf", "hnsw")] == ["flat", "ivf", "hnsw"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_flat_finds_what_exact_search_finds(tmp_path: Path, dtype: str) -> None:
    keys, queries = unit_vectors(500, dtype=dtype), unit_vectors(20)
    found = opened(keys, "flat", tmp_path).search(queries, 10)
    exact = queries.astype(np.float64) @ keys.astype(np.float64).T
    expected = np.argsort(-exact, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(found.keys, expected)
    np.testing.assert_allclose(found.similarities, np.take_along_axis(exact, expected, axis=1), atol=1e-6)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_kinds_find_nearly_all(tmp_path: Path, kind: str) -> None:
    keys = unit_vectors(3_000)
    index = opened(keys, kind, tmp_path)
    assert index.shape == (3_000, 16)
    assert recall(index, keys, keys[:50], exact_bars(keys, keys[:50], 10), 10) >= (
        0.95 if kind == "hnsw" else 0.3
    )  # random keys have no clusters


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
@pytest.mark.parametrize("rows", [1, 2, 8, 39, 40])
def test_few_keys_are_all_found(tmp_path: Path, kind: str, rows: int) -> None:
    keys = unit_vectors(rows)
    index = opened(keys, kind, tmp_path)
    found = index.search(keys[:3], 100)
    assert found.keys.shape == (min(rows, 3), rows)
    assert all(sorted(row) == list(range(rows)) for row in found.keys.tolist())
    assert recall(index, keys, keys[:3], exact_bars(keys, keys[:3], 100), 100) == 1


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, 0.2])
def test_key_that_is_no_unit_vector_is_named_by_its_row_in_the_memory(kind: str, value: float) -> None:
    keys = unit_vectors(100)
    keys[42] = value if value != 0.2 else keys[42] * 1.01
    with pytest.raises(BuildError, match="row 1042: expected a unit vector, found length .*train --overwrite"):
        build_index(keys, kind, 1_000, lambda rows: None)


def test_bad_key_behind_the_first_block_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index_builder.faiss_index._BLOCK_KEYS", 16)
    keys = unit_vectors(100)
    keys[99] = 0
    with pytest.raises(BuildError, match="row 99: expected a unit vector, found length 0;"):
        build_index(keys, "flat", 0, lambda rows: None)


def test_blocks_change_nothing_and_progress_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, told = unit_vectors(100), []
    whole, _ = build_index(keys, "hnsw", 0, told.append)
    assert told == [100]
    monkeypatch.setattr("index_builder.faiss_index._BLOCK_KEYS", 16)
    told.clear()
    parts, info = build_index(keys, "flat", 0, told.append)
    assert (sum(told), len(told), info.keys) == (100, 7, 100)
    np.testing.assert_array_equal(parts.reconstruct_n(0, 100), keys)
    assert whole.ntotal == parts.ntotal


def test_recall_counts_what_the_index_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index_builder.faiss_index._BLOCK_KEYS", 7)  # the exact search goes block by block too
    keys = unit_vectors(40)
    half, info = build_index(keys[:20], "flat", 0, lambda rows: None)
    write_index(half, tmp_path / "half.faiss")
    exact = np.argsort(-(keys @ keys.T), axis=1)[:, :10]
    expected = (exact < 20).mean()
    found = KeyIndex(tmp_path / "half.faiss", info)
    assert 0 < expected < 1
    assert recall(found, keys, keys, exact_bars(keys, keys, 10), 10) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_enriched_label_keys_are_indexed_as_they_are_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("index_builder.faiss_index._BLOCK_KEYS", 64)
    keys, queries = enriched(300), unit_vectors(20)
    index = opened(keys, kind, tmp_path)
    found = index.search(queries, 300)
    assert index.shape == (300, 16)
    assert all(sorted(row) == list(range(300)) for row in found.keys.tolist())
    expected = np.take_along_axis(queries @ keys[:].T, found.keys, axis=1)
    np.testing.assert_allclose(found.similarities, expected, atol=0.02 if kind == "hnsw" else 1e-5)  # eight bits a key


def test_recall_of_enriched_label_keys_is_that_of_the_same_keys_in_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index_builder.faiss_index._BLOCK_KEYS", 7)
    keys, queries = enriched(60), unit_vectors(25)
    mixed = keys[:]
    bars = exact_bars(mixed, queries, 10)
    np.testing.assert_allclose(exact_bars(keys, queries, 10), bars, atol=1e-6)
    half = opened(mixed[:30], "flat", tmp_path)
    assert 0 < recall(half, mixed, queries, bars, 10) < 1
    assert recall(half, keys, queries, bars, 10) == recall(half, mixed, queries, bars, 10)
    assert recall(opened(keys, "flat", tmp_path), keys, queries, bars, 10) == 1


def test_effort_is_tuned_for_enriched_label_keys(tmp_path: Path) -> None:
    keys, queries = enriched(3_000), unit_vectors(50)
    index, info = build_index(keys, "ivf", 0, lambda rows: None)
    write_index(index, tmp_path / "keys.faiss")
    timid = info.model_copy(update={"effort": 1})
    tuned, found = tune_effort(tmp_path / "keys.faiss", timid, keys, queries, 50)
    assert tuned.effort > 1
    assert found == recall(KeyIndex(tmp_path / "keys.faiss", tuned), keys, queries, exact_bars(keys, queries, 50), 50)


def test_effort_is_doubled_until_recall_is_good_or_it_no_longer_pays(tmp_path: Path) -> None:
    keys = unit_vectors(4_000)
    index, info = build_index(keys, "ivf", 0, lambda rows: None)
    write_index(index, tmp_path / "keys.faiss")
    timid = info.model_copy(update={"effort": 1})
    tuned, found = tune_effort(tmp_path / "keys.faiss", timid, keys, keys[:50], 100)
    bars = exact_bars(keys, keys[:50], 100)
    assert tuned.effort in (2, 4, 8)
    assert found == recall(KeyIndex(tmp_path / "keys.faiss", tuned), keys, keys[:50], bars, 100)
    assert found > recall(KeyIndex(tmp_path / "keys.faiss", timid), keys, keys[:50], bars, 100)


def test_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    index = faiss.IndexFlatIP(16)
    with pytest.raises(OSError, match="No space left"):
        write_index(index, Path("/dev/full"))
    assert list(tmp_path.iterdir()) == []
