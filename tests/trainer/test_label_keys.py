"""Label keys against the written formula, and the label inputs of an adapter."""

from collections.abc import Sequence

import numpy as np
import pytest

from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory import label_keys
from recollect.trainer.memory.label_keys import LabelInputs, LabelKeys
from tests.trainer.helpers import label_sets, random_units

DIM, LABELS = 8, 6
# Label 4 has no instance, label 5 has one instance, and instance 3 has no label.
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


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_label_keys_equal_the_formula_of_pefa(alpha: float) -> None:
    keys = LabelKeys(TEXTS, INSTANCES, label_sets(SETS), alpha)
    assert (len(keys), keys.shape, keys.alpha) == (LABELS, (LABELS, DIM), alpha)
    assert keys[:].dtype == np.float32
    np.testing.assert_allclose(keys[:], written_formula(TEXTS, INSTANCES, SETS, alpha), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(keys[:], axis=1), 1, atol=1e-6)


def test_label_keys_do_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_keys, "_CHUNK_LABELS", 4)
    keys = LabelKeys(TEXTS, INSTANCES, label_sets(SETS), 0.5)
    np.testing.assert_array_equal(keys.filled(), keys[:])
    assert keys.filled().dtype == np.float32


def test_instances_that_sum_to_zero_leave_the_text_vector() -> None:
    opposites = np.stack([INSTANCES[0], -INSTANCES[0]])
    np.testing.assert_array_equal(LabelKeys(TEXTS[:1], opposites, label_sets([[0], [0]]), 0.5)[:], TEXTS[:1])


ADAPTED_LABELS, ADAPTED_INSTANCES = 7, 12


def input_vectors(rows: int, seed: int) -> np.ndarray:
    return random_units(np.random.default_rng(seed), rows, DIM)


@pytest.fixture
def sets() -> LabelSets:
    """Label 0 has no instance. Label 1 has one instance, number 4. All other labels have several instances."""
    rows = [[2 + i % 5, 2 + (i + 2) % 5] for i in range(ADAPTED_INSTANCES)]
    rows[4] = [1, *rows[4]]
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return LabelSets(indptr, np.array([label for row in rows for label in sorted(row)], dtype=np.int32))


@pytest.fixture
def inputs(sets: LabelSets) -> LabelInputs:
    return LabelInputs.of(input_vectors(ADAPTED_LABELS, 1), input_vectors(ADAPTED_INSTANCES, 2), sets, 0.5)


def without(sets: LabelSets, gone: list[int]) -> LabelSets:
    kept = [[] if row in gone else sets.indices[sets.indptr[row] : sets.indptr[row + 1]] for row in range(len(sets))]
    return LabelSets(np.cumsum([0, *map(len, kept)], dtype=np.int64), np.concatenate(kept).astype(np.int32))


def test_inputs_of_all_instances_are_enriched_label_keys(inputs: LabelInputs, sets: LabelSets) -> None:
    expected = LabelKeys(input_vectors(ADAPTED_LABELS, 1), input_vectors(ADAPTED_INSTANCES, 2), sets, 0.5)[:]
    np.testing.assert_allclose(inputs[:].vectors.numpy(), expected, atol=1e-6)
    vectors, side, numbers = inputs.batch(np.array([6, 0, 3]), "cpu")
    np.testing.assert_allclose(vectors.numpy(), expected[[6, 0, 3]], atol=1e-6)
    assert (side, numbers.tolist()) == ("labels", [6, 0, 3])
    assert (len(inputs), inputs.lengths.tolist(), inputs.lengths_of(np.arange(3)).tolist()) == (7, [1] * 7, [1] * 3)


@pytest.mark.parametrize("gone", [[4], [3, 4, 9], list(range(ADAPTED_INSTANCES))])
def test_left_out_instances_are_in_no_label_input(inputs: LabelInputs, sets: LabelSets, gone: list[int]) -> None:
    expected = LabelKeys(
        input_vectors(ADAPTED_LABELS, 1), input_vectors(ADAPTED_INSTANCES, 2), without(sets, gone), 0.5
    )[:]
    rows = np.array([1, 5, 0, 2])
    vectors, *_ = inputs.excluding(np.array(gone)).batch(rows, "cpu")
    np.testing.assert_allclose(vectors.numpy(), expected[rows], atol=1e-6)
    assert np.abs(expected - inputs.vectors(slice(None))).max() > 0.01
