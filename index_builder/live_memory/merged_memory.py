"""The final state of a live memory as a memory folder, and as the entries that a bundle cannot contain."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from recollect.core.system.files import save_array, save_rows, write_lines
from recollect.core.tables.entries import Entry, PutCorrection, PutInstance
from recollect.core.tables.rows import Strings
from recollect.core.tables.snapshot import Snapshot
from recollect.trainer.data.split import LabelSets
from recollect.trainer.memory.memory import QUERY_VECTORS, Memory, open_memory, write_defaults

_BLOCK_ROWS = 65_536


def contained_instances(live: Snapshot) -> Int[np.ndarray, " instance"]:
    """The instances that a bundle can contain: those that were not removed and have no `fields`."""
    return np.setdiff1d(np.flatnonzero(~live.instances.removed), _with_fields(live))


def kept_entries(live: Snapshot) -> list[Entry]:
    """The entries that make the rest of a memory: instances with `fields`, and corrections of present labels."""
    entries, instances, uids = list[Entry](), live.instances, live.labels.uids
    for row in _with_fields(live):
        vector, fields = instances.vectors[row - instances.bundle_rows], live.fields_of(row)
        entries.append(PutInstance(instances.uids[row], instances.texts[row], live.labels_of(row), vector, fields))
    rows = live.corrections.rows
    for row in np.flatnonzero(~rows.removed).tolist():
        if not live.labels.removed[label := rows.numbers.item(row)]:
            entries.append(PutCorrection(rows.uids[row], rows.texts[row], uids[label], rows.vectors[row]))
    return entries


def write_merged_memory(memory: Memory, live: Snapshot, folder: Path) -> Memory:
    """Write a memory folder with the final state, without `kept_entries`, and open it. Keys of old texts are copied."""
    folder.mkdir(parents=True)
    instances, labels = contained_instances(live), np.flatnonzero(live.labels.present())
    keys, dim, dtype = memory.keys, memory.plan.dim, memory.keys.dtype
    blocks = itertools.chain(
        _blocks(keys[: memory.plan.instances], live.instances.vectors, instances),
        _blocks(keys[memory.plan.instances :], live.labels.rows.vectors, live.labels.row_of[labels]),
    )
    save_rows(folder / "keys.npy", (len(instances) + len(labels), dim), dtype, blocks)
    if memory.distilled is not None:
        queries = _blocks(memory.distilled, live.instances.vectors, instances)
        save_rows(folder / QUERY_VECTORS, (len(instances), dim), memory.distilled.dtype, queries)
    sets = _label_sets(live, instances, labels)
    save_array(folder / "value_indptr.npy", sets.indptr)
    save_array(folder / "value_indices.npy", sets.indices)
    save_array(folder / "filtered_pairs.npy", _filtered_pairs(memory, instances, labels))
    write_lines(folder / "instances.jsonl", _texts(live.instances.uids, live.instances.texts, instances))
    write_lines(folder / "labels.jsonl", _labels(live, labels))
    origin = f"{memory.plan.dataset_sha256} with the entries up to {live.sequence}"
    digest = hashlib.sha256(origin.encode()).hexdigest()
    plan = dataclasses.replace(memory.plan, instances=len(instances), labels=len(labels), dataset_sha256=digest)
    write_defaults(folder, plan, memory.defaults)
    return open_memory(folder)


def _with_fields(live: Snapshot) -> list[int]:
    """The present instances with fields that differ from their defaults, which are live."""
    rows = np.flatnonzero(~live.instances.removed[live.instances.bundle_rows :]) + live.instances.bundle_rows
    return [row for row in rows.tolist() if row in live.fields]


def _blocks(
    old: Float[np.ndarray, "bundle dim"], new: Float[np.ndarray, "live dim"], rows: Int[np.ndarray, " row"]
) -> Iterator[np.ndarray]:
    """Yield some rows of old vectors, which new ones follow, in blocks."""
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        content, is_old = np.empty((len(block), old.shape[1]), old.dtype), block < len(old)
        content[is_old], content[~is_old] = old[block[is_old]], new[block[~is_old] - len(old)]
        yield content


def _label_sets(
    live: Snapshot, instances: Int[np.ndarray, " instance"], labels: Int[np.ndarray, " label"]
) -> LabelSets:
    """The labels of instances, by their new positions."""
    place, label = live.values.gather(instances)
    ends = np.cumsum(np.bincount(place, minlength=len(instances)))
    return LabelSets(np.append(0, ends).astype(np.int64), labels.searchsorted(label).astype(np.int32))


def _texts(uids: Strings, texts: Strings, rows: Int[np.ndarray, " row"]) -> Iterable[dict[str, str]]:
    return ({"uid": uids[row], "text": texts[row]} for row in rows.tolist())


def _labels(live: Snapshot, labels: Int[np.ndarray, " label"]) -> Iterable[dict[str, Any]]:
    for record, label in zip(_texts(live.labels.uids, live.labels.texts, labels), labels.tolist(), strict=True):
        yield {**record, **live.labels.fields_of(label)}


def _filtered_pairs(
    memory: Memory, instances: Int[np.ndarray, " instance"], labels: Int[np.ndarray, " label"]
) -> Int[np.ndarray, "pair 2"]:
    """The filtered pairs of the old instances and labels that are left, by their new rows."""
    pairs = memory.filtered_pairs
    is_left = np.isin(pairs[:, 0], instances) & np.isin(pairs[:, 1], labels)
    left = pairs[is_left]
    return np.stack([instances.searchsorted(left[:, 0]), labels.searchsorted(left[:, 1])], axis=1)
