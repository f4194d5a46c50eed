"""Synthetic memories: complete, repeatable and similar to real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import synthetic_memory
from benchmarks.synthetic_memory import SyntheticMemory
from recollect.index_builder.faiss_index import check_units
from recollect.trainer.memory.memory import Memory, open_memory


def write(folder: Path, instances: int = 6_000, labels: int = 900, dim: int = 24, seed: int = 0) -> Memory:
    SyntheticMemory(instances, labels, dim, 5, seed).write(folder, lambda rows: None)
    return open_memory(folder)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Memory:
    return write(tmp_path_factory.mktemp("synthetic") / "memory")


def test_synthetic_memory_can_be_opened_and_has_a_text_for_every_key(memory: Memory) -> None:
    assert (memory.plan.instances, memory.plan.labels, memory.keys.shape) == (6_000, 900, (6_900, 24))
    check_units(memory.keys, 0)
    for part, rows in (("instances", 6_000), ("labels", 900)):
        lines = (memory.folder / f"{part}.jsonl").read_text().splitlines()
        assert len(set(lines)) == rows


def test_equal_arguments_give_equal_memories_and_different_seeds_give_different_memories(
    memory: Memory, tmp_path: Path
) -> None:
    reported: list[int] = []
    SyntheticMemory(6_000, 900, 24, 5, 0).write(tmp_path / "again", reported.append)
    again = open_memory(tmp_path / "again")
    for name in ("keys", "value_indptr", "value_indices"):
        np.testing.assert_array_equal(getattr(again, name), getattr(memory, name))
    assert sum(reported) == 6_900
    other = write(tmp_path / "other", seed=1)
    assert not np.allclose(other.keys, memory.keys)


def test_blocks_have_independent_random_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_memory, "_BLOCK_ROWS", 1_000)
    memory = write(tmp_path / "blocks")
    check_units(memory.keys, 0)
    assert len(np.unique(memory.keys.astype(np.float32), axis=0)) == 6_900


def test_label_frequencies_follow_zipfs_law(memory: Memory) -> None:
    sizes = np.diff(memory.value_indptr)
    assert sizes.min() >= 1
    assert 4 < sizes.mean() < 6
    for row in range(50):
        labels = memory.value_indices[memory.value_indptr[row] : memory.value_indptr[row + 1]]
        assert (np.diff(labels) > 0).all()
    counts = np.sort(np.bincount(memory.value_indices, minlength=900))[::-1]
    rank = np.arange(1, 301)
    slope = np.polyfit(np.log(rank), np.log(counts[:300]), 1)[0]
    assert -1.2 < slope < -0.5
    assert counts[:90].sum() > 0.3 * counts.sum()  # a tenth of the labels


def test_keys_have_neighbours_at_every_distance_scale(memory: Memory) -> None:
    queries = SyntheticMemory(6_000, 900, 24, 5, 0).queries(100)
    keys = memory.keys.astype(np.float32)
    similarities = -np.sort(-(queries @ keys.T), axis=1)
    nearest, tenth, hundredth, middle = np.median(similarities[:, [0, 9, 99, 3_450]], axis=0)
    assert 1 > nearest > tenth > hundredth > middle + 0.2
    assert similarities.max() < 0.9999  # no query is a key


def test_labels_are_close_to_their_instances(memory: Memory) -> None:
    keys = memory.keys.astype(np.float32)
    voter = np.repeat(np.arange(6_000), np.diff(memory.value_indptr))
    own = np.einsum("kd,kd->k", keys[6_000 + memory.value_indices], keys[voter]).mean()
    other = np.einsum("kd,kd->k", keys[6_000 + np.random.default_rng(0).permutation(memory.value_indices)], keys[voter])
    assert own > other.mean() + 0.02


@pytest.mark.parametrize(("instances", "labels"), [(1, 1), (5, 3), (50, 1)])
def test_synthetic_memory_with_few_instances_and_labels_can_be_written(
    tmp_path: Path, instances: int, labels: int
) -> None:
    memory = write(tmp_path / "memory", instances, labels)
    assert memory.keys.shape == (instances + labels, 24)
    assert memory.value_indices.max() < labels
