"""Tables of a bundle: the labels of each instance, and the instances of each label."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect.index_builder.bundle_tables import transpose
from recollect.service.store.store import Store
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.memory import open_memory

LABELS = 9


@given(st.lists(st.lists(st.integers(0, LABELS - 1), unique=True).map(sorted), max_size=30))
def test_transposed_label_sets_list_the_instances_of_each_label_in_ascending_order(votes: list[list[int]]) -> None:
    indptr = np.cumsum([0, *map(len, votes)])
    indices = np.array([label for row in votes for label in row], dtype=np.int32)
    found = transpose(LabelSets(indptr, indices), LABELS)
    assert (found.indptr.dtype, found.indices.dtype) == (np.int64, np.int32)
    assert [row.tolist() for row in np.split(found.indices, found.indptr[1:-1])] == [
        [instance for instance, row in enumerate(votes) if label in row] for label in range(LABELS)
    ]


def test_bundle_contains_the_values_of_its_memory_and_their_transpose(built: Any) -> None:
    memory, bundle = open_memory(built.run / "memory"), Store(built.store).open(built.version)
    np.testing.assert_array_equal(bundle.instances.values.indices, memory.value_indices)
    votes = np.split(memory.value_indices, memory.value_indptr[1:-1])
    voters = np.split(bundle.instances.voters.indices, bundle.instances.voters.indptr[1:-1])
    assert [row.tolist() for row in voters] == [
        [instance for instance, row in enumerate(votes) if label in row] for label in range(8)
    ]
