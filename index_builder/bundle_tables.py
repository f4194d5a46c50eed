"""A memory's values, label counts, uids and texts as a bundle's files, in the form that maps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from index_builder.errors import BuildError
from service.bundle.arrays import save_array
from service.bundle.strings import write_table
from trainer.data.split import LabelSets
from trainer.memory import Memory


def write_tables(memory: Memory, folder: Path) -> None:
    """Write them into a bundle's folder.

    Raises:
        BuildError: If the memory's texts are damaged.
    """
    instances, labels = memory.plan.instances, memory.plan.labels
    save_array(folder / "value_indptr.npy", memory.value_indptr)
    save_array(folder / "value_indices.npy", memory.value_indices)
    voters = transposed(memory.label_sets, labels)
    save_array(folder / "voter_indptr.npy", voters.indptr)
    save_array(folder / "voter_indices.npy", voters.indices)
    save_array(folder / "label_counts.npy", np.bincount(memory.value_indices, minlength=labels).astype(np.int32))
    for part, rows in (("label", labels), ("instance", instances)):
        source = memory.folder / f"{part}s.jsonl"
        for field in ("uid", "text"):
            table = write_table(folder, f"{part}_{field}s", field_of(source, field))
            if len(table) != rows:
                raise BuildError(f"{source}: expected {rows:,} lines, found {len(table):,}; train again")
            if (part, field) == ("label", "uid"):
                save_array(folder / "label_order.npy", table.sorted_rows())


def transposed(sets: LabelSets, labels: int) -> LabelSets:
    """The instances of each label, rising: a counting sort, which holds little beside its result."""
    ones = np.ones(len(sets.indices), dtype=np.int8)
    by_label = sparse.csr_matrix((ones, sets.indices, sets.indptr), shape=(len(sets), labels)).tocsc()
    return LabelSets(by_label.indptr.astype(np.int64), by_label.indices.astype(np.int32, copy=False))


def field_of(path: Path, field: str) -> Iterator[str]:
    """A field of every line of a memory's JSON lines."""
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield _string(json.loads(line)[field])
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{path}: expected JSON lines with {field!r}, found: {error!r}; train again") from None


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} for a string")
    return value
