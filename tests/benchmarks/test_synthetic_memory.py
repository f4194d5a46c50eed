"""Synthetic memories: complete, repeatable and similar to real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
