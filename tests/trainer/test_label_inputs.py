"""What an adapter reads of a label: its text, its instances, and never the instances of the step's own batch."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.split import LabelSets
from trainer.label_inputs import LabelInputs
from trainer.label_keys import LabelKeys

LABELS, INSTANCES, DIM = 7, 12, 8


def units(rows: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def sets() -> LabelSets:
    """Label 0 has no instance, label 1 has one, instance 4; the others have several."""
    rows = [[2 + i % 5, 2 + (i + 2) % 5] for i in range(INSTANCES)]
    rows[4] = [1, *rows[4]]
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return LabelSets(indptr, np.array([label for row in rows for label in sorted(row)], dtype=np.int32))


@pytest.fixture
def inputs(sets: LabelSets) -> LabelInputs:
    return LabelInputs.of(units(LABELS, 1), units(INSTANCES, 2), sets, 0.5)


def without(sets: LabelSets, gone: list[int]) -> LabelSets:
    kept = [[] if row in gone else sets.indices[sets.indptr[row] : sets.indptr[row + 1]] for row in range(len(sets))]
    return LabelSets(np.cumsum([0, *map(len, kept)], dtype=np.int64), np.concatenate(kept).astype(np.int32))


def test_whole_it_reads_what_enriched_label_keys_are(inputs: LabelInputs, sets: LabelSets) -> None:
    expected = LabelKeys(units(LABELS, 1), units(INSTANCES, 2), sets, 0.5)[:]
    np.testing.assert_allclose(inputs[:].vectors.numpy(), expected, atol=1e-6)
    vectors, side, numbers = inputs.batch(np.array([6, 0, 3]), "cpu")
    np.testing.assert_allclose(vectors.numpy(), expected[[6, 0, 3]], atol=1e-6)
    assert (side, numbers.tolist()) == ("labels", [6, 0, 3])
    assert (len(inputs), inputs.lengths.tolist(), inputs.lengths_of(np.arange(3)).tolist()) == (7, [1] * 7, [1] * 3)


@pytest.mark.parametrize("gone", [[0], [4], [3, 4, 9], list(range(INSTANCES))])
def test_left_out_instances_are_in_no_label(inputs: LabelInputs, sets: LabelSets, gone: list[int]) -> None:
    expected = LabelKeys(units(LABELS, 1), units(INSTANCES, 2), without(sets, gone), 0.5)[:]
    rows = np.array([1, 5, 0, 2])
    vectors, *_ = inputs.excluding(np.array(gone)).batch(rows, "cpu")
    np.testing.assert_allclose(vectors.numpy(), expected[rows], atol=1e-6)
    assert np.abs(expected - inputs.vectors(slice(None))).max() > 0.01


def test_label_whose_only_instance_is_left_out_is_its_text_to_the_bit(inputs: LabelInputs) -> None:
    alone = inputs.excluding(np.array([4])).vectors(np.array([1]))
    np.testing.assert_array_equal(alone, units(LABELS, 1)[[1]])


def test_text_alone_reads_no_instance(sets: LabelSets) -> None:
    inputs = LabelInputs.of(units(LABELS, 1), units(INSTANCES, 2), sets, 0.0).excluding(np.array([4]))
    np.testing.assert_array_equal(inputs.vectors(slice(None)), units(LABELS, 1))
