"""Write a memory's values, label counts, uids, texts and fields to files of a bundle. The service maps these files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from recollect.core.bundle.field_table import write_field_table
from recollect.core.bundle.label_fields import checked_fields, to_json
from recollect.core.bundle.strings import StringTable, write_table
from recollect.core.system.files import save_array
from recollect.index_builder.errors import BuildError
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.memory import Memory


def write_bundle_tables(memory: Memory, folder: Path) -> None:
    """Write the tables into a bundle folder; a `BuildError` if the memory's texts are damaged."""
    labels = memory.plan.labels
    save_array(folder / "label_counts.npy", memory.label_counts.astype(np.int32))
    save_array(folder / "label_order.npy", _write_strings(memory, "label", "uid", labels, folder).sorted_rows())
    _write_strings(memory, "label", "text", labels, folder)
    write_field_table(folder, _label_fields(memory.folder / "labels.jsonl"))
    save_array(folder / "value_indptr.npy", memory.value_indptr)
    save_array(folder / "value_indices.npy", memory.value_indices)
    voters = transpose(memory.label_sets, labels)
    save_array(folder / "voter_indptr.npy", voters.indptr)
    save_array(folder / "voter_indices.npy", voters.indices)
    for field in ("uid", "text"):
        _write_strings(memory, "instance", field, memory.plan.instances, folder)


def _write_strings(memory: Memory, part: str, field: str, rows: int, folder: Path) -> StringTable:
    source = memory.folder / f"{part}s.jsonl"
    table = write_table(folder, f"{part}_{field}s", read_field(source, field))
    if len(table) != rows:
        raise BuildError(
            f"{source}: expected {rows:,} lines, found {len(table):,}; "
            "encode the memory again with `recollect train --overwrite`"
        )
    return table


def transpose(sets: LabelSets, labels: int) -> LabelSets:
    """List the instances of each label in ascending order, from the labels of each instance.

    The function sorts by counting, so it needs little memory in addition to its result.
    """
    ones = np.ones(len(sets.indices), dtype=np.int8)
    by_label = sparse.csr_matrix((ones, sets.indices, sets.indptr), shape=(len(sets), labels)).tocsc()
    return LabelSets(by_label.indptr.astype(np.int64), by_label.indices.astype(np.int32, copy=False))


def read_field(path: Path, field: str) -> Iterator[str]:
    """Yield one field of every line of a JSON Lines file in the memory folder."""
    with _memory_errors(path, f"the field {field!r}"), path.open(encoding="utf-8") as lines:
        for line in lines:
            if not isinstance(text := json.loads(line)[field], str):
                raise TypeError(f"expected a string, found {type(text).__name__}")
            yield text


def _label_fields(path: Path) -> Iterator[str]:
    """Yield the fields of each label, as JSON."""
    with _memory_errors(path, "fields of labels"), path.open(encoding="utf-8") as lines:
        for line in lines:
            fields = json.loads(line)
            yield to_json(checked_fields({name: fields[name] for name in fields if name not in ("uid", "text")}))


@contextlib.contextmanager
def _memory_errors(path: Path, expected: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(
            f"{path}: expected JSON lines with {expected}, found: {error!r}; "
            "encode the memory again with `recollect train --overwrite`"
        ) from None
