from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.helpers import label_sets, random_units
from trainer import label_keys
from trainer.data.dataset import open_dataset
from trainer.encoder import Encoder
from trainer.key_sources import EncodedTexts
from trainer.label_keys import LabelKeys
from trainer.memory import Memory, MemoryPlan, open_memory
from trainer.memory_writer import write_memory
from trainer.ranks import ALONE

DIM, LABELS = 8, 6
# Label 4 has no instance, label 5 has one, instance 3 has no label.
SETS = [[0, 1], [1], [0, 2, 3], [], [3], [1, 5], [2]]


TEXTS = random_units(np.random.default_rng(1), LABELS, DIM)
INSTANCES = random_units(np.random.default_rng(2), len(SETS), DIM)


def written_formula(
    texts: np.ndarray, instances: np.ndarray, sets: Sequence[Sequence[int]], alpha: float
) -> np.ndarray:
    """z_l = unit((1 - alpha) t_l + alpha unit(sum of x_i)), label by label, in float64."""
    keys = texts.astype(np.float64)
    for label in range(len(texts)):
        rows = [row for row, labels in enumerate(sets) if label in labels]
        if rows and alpha:
            total = sum(instances[row].astype(np.float64) for row in rows)
            mixed = (1 - alpha) * keys[label] + alpha * total / np.linalg.norm(total)
            keys[label] = mixed / np.linalg.norm(mixed)
    return keys


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_keys_are_the_written_formula(alpha: float) -> None:
    keys = LabelKeys(TEXTS, INSTANCES, label_sets(SETS), alpha)
    assert (len(keys), keys.shape, keys.alpha) == (LABELS, (LABELS, DIM), alpha)
    assert keys[:].dtype == np.float32
    np.testing.assert_allclose(keys[:], written_formula(TEXTS, INSTANCES, SETS, alpha), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(keys[:], axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize(
    "rows",
    [slice(0, 2), slice(3, None), slice(4, 5), slice(2, 2), slice(5, 99), [0], [4], [5, 1, 1, 4], []],
    ids=str,
)
def test_any_rows_may_be_read_as_of_an_array(alpha: float, rows: slice | list[int]) -> None:
    chosen = rows if isinstance(rows, slice) else np.array(rows, dtype=np.int64)
    keys = LabelKeys(TEXTS, INSTANCES, label_sets(SETS), alpha)
    expected = written_formula(TEXTS, INSTANCES, SETS, alpha)[chosen]
    assert keys[chosen].shape == expected.shape
    np.testing.assert_allclose(keys[chosen], expected, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("stretch", [1, 4, 100])
def test_all_are_the_same_filled_in_stretches(alpha: float, stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_keys, "_STRETCH_LABELS", stretch)
    keys = LabelKeys(TEXTS, INSTANCES, label_sets(SETS), alpha)
    np.testing.assert_array_equal(keys.filled(), keys[:])
    assert keys.filled().dtype == np.float32


def test_alpha_0_gives_the_text_vectors_untouched() -> None:
    np.testing.assert_array_equal(LabelKeys(TEXTS, INSTANCES, label_sets(SETS), 0.0)[:], TEXTS)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_label_without_instances_keeps_its_text_vector(alpha: float) -> None:
    np.testing.assert_array_equal(LabelKeys(TEXTS, INSTANCES, label_sets(SETS), alpha)[4:5], TEXTS[4:5])
    none = LabelKeys(TEXTS, INSTANCES[:0], label_sets([]), alpha)
    np.testing.assert_array_equal(none[:], TEXTS)


def test_label_of_one_instance_has_its_vector_at_alpha_1() -> None:
    np.testing.assert_allclose(LabelKeys(TEXTS, INSTANCES, label_sets(SETS), 1.0)[5:6], INSTANCES[5:6], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_instances_that_cancel_each_other_leave_the_text_vector(alpha: float) -> None:
    opposites = np.stack([INSTANCES[0], -INSTANCES[0]])
    np.testing.assert_array_equal(LabelKeys(TEXTS[:1], opposites, label_sets([[0], [0]]), alpha)[:], TEXTS[:1])


def test_instance_that_cancels_the_text_leaves_the_text_vector() -> None:
    text = np.eye(1, DIM, dtype=np.float32)
    np.testing.assert_array_equal(LabelKeys(text, -text, label_sets([[0]]), 0.5)[:], text)


def test_only_the_instances_of_the_wanted_labels_matter() -> None:
    instances = INSTANCES.copy()
    instances[[2, 3, 4, 6]] = np.nan  # none of them has label 1 or 5
    wanted = np.array([1, 5])
    found = LabelKeys(TEXTS, instances, label_sets(SETS), 0.5)[wanted]
    np.testing.assert_allclose(found, written_formula(TEXTS, INSTANCES, SETS, 0.5)[wanted], atol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_mapped_half_precision_keys_are_mixed_in_single_precision(tmp_path: Path, alpha: float) -> None:
    for name, vectors in (("texts", TEXTS), ("instances", INSTANCES)):
        np.save(tmp_path / f"{name}.npy", vectors.astype(np.float16))
    texts, instances = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("texts", "instances"))
    keys = LabelKeys(texts, instances, label_sets(SETS), alpha)
    expected = written_formula(texts, instances, SETS, alpha)
    for rows in (slice(None), slice(1, 4), np.array([5, 0, 4])):
        assert keys[rows].dtype == np.float32
        np.testing.assert_allclose(keys[rows], expected[rows], atol=1e-6)


class TestMemorysLabelKeys:
    @pytest.fixture
    def memory(self, toy: Path, tiny_encoder: Encoder, tmp_path: Path) -> Memory:
        """The toy's memory, whose label keys are to be a quarter instances."""
        dataset = open_dataset(toy)
        split = dataset.read_split("train")
        plan = MemoryPlan.of(dataset.labels, split, tiny_encoder, "0" * 64, "float32")
        source = EncodedTexts(tiny_encoder, dataset.labels, split.entries, ALONE)
        write_memory(tmp_path / "memory", plan, dataset.labels, split, source, ALONE, label_key_alpha=0.25)
        return open_memory(tmp_path / "memory")

    @pytest.mark.parametrize("alpha", [None, 0.0, 0.5, 1.0])
    def test_are_mixed_by_the_memorys_own_alpha_unless_told_another(self, memory: Memory, alpha: float | None) -> None:
        votes = np.split(memory.value_indices, memory.value_indptr[1:-1])
        sets = [row.tolist() for row in votes]
        expected = written_formula(memory.keys[14:], memory.keys[:14], sets, 0.25 if alpha is None else alpha)
        np.testing.assert_allclose(memory.label_keys(alpha)[:], expected, atol=1e-6)

    def test_stand_beside_its_instance_keys_and_label_sets(self, memory: Memory) -> None:
        np.testing.assert_array_equal(memory.instance_keys, memory.keys[:14])
        assert isinstance(memory.instance_keys, np.memmap)
        assert len(memory.label_sets) == 14
        np.testing.assert_array_equal(memory.label_sets.indices, memory.value_indices)
