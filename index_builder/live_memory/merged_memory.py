"""Writes a memory folder with the final state of a live memory. Keys of unchanged texts are copied."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Float, Int

from recollect.index_builder.bundle_tables import read_field
from recollect.index_builder.live_memory.final_state import FinalState
from recollect.service.files import flush, save_array, save_rows
from recollect.service.memory.entries import PutInstance, PutLabel
from recollect.trainer.memory.memory import QUERY_VECTORS, Memory, open_memory, write_defaults

_BLOCK_ROWS = 65_536


def write_merged_memory(memory: Memory, state: FinalState, sequence: int, folder: Path) -> Memory:
    """Write a memory folder, and open it.

    Args:
        memory: The memory before the entries.
        state: The final state after the entries.
        sequence: Sequence number of the last entry.
        folder: A folder that does not exist.
    """
    folder.mkdir(parents=True)
    instances, labels = len(state.rows) + len(state.instances), len(state.label_rows) + len(state.labels)
    new_instances, new_labels = _vectors(state.instances, memory), _vectors(state.labels, memory)
    label_keys, dim = memory.keys[memory.plan.instances :], memory.plan.dim
    replaced = {row: _vectors([put], memory)[0] for row, put in state.replaced_labels.items()}
    keys = itertools.chain(
        _blocks(memory.keys, state.rows),
        [new_instances],
        _blocks(label_keys, state.label_rows, replaced),
        [new_labels],
    )
    save_rows(folder / "keys.npy", (instances + labels, dim), memory.keys.dtype, keys)
    if memory.distilled is not None:
        queries = itertools.chain(_blocks(memory.distilled, state.rows), [new_instances])
        save_rows(folder / QUERY_VECTORS, (instances, dim), memory.distilled.dtype, queries)
    save_array(folder / "value_indptr.npy", state.label_sets.indptr)
    save_array(folder / "value_indices.npy", state.label_sets.indices)
    save_array(folder / "filtered_pairs.npy", _filtered_pairs(memory, state))
    _write_texts(folder / "instances.jsonl", memory, state.rows, {}, state.instances)
    _write_texts(folder / "labels.jsonl", memory, state.label_rows, state.replaced_labels, state.labels)
    origin = f"{memory.plan.dataset_sha256} with the entries up to {sequence}"
    plan = dataclasses.replace(
        memory.plan, instances=instances, labels=labels, dataset_sha256=hashlib.sha256(origin.encode()).hexdigest()
    )
    write_defaults(folder, plan, memory.defaults)
    return open_memory(folder)


def _vectors(puts: Sequence[PutInstance | PutLabel], memory: Memory) -> Float[np.ndarray, "put dim"]:
    stacked = np.stack([put.vector for put in puts]) if puts else np.empty((0, memory.plan.dim))
    return stacked.astype(memory.keys.dtype)


def _blocks(
    vectors: np.ndarray, rows: Int[np.ndarray, " row"], replaced: Mapping[int, np.ndarray] | None = None
) -> Iterator[np.ndarray]:
    """Yield some rows, in blocks. Some of them can be replaced."""
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        content = vectors[block]
        for row, vector in (replaced or {}).items():
            content[block == row] = vector
        yield content


def _write_texts(
    path: Path,
    memory: Memory,
    rows: Int[np.ndarray, " row"],
    replaced: Mapping[int, PutLabel],
    puts: Sequence[PutInstance | PutLabel],
) -> None:
    """Write the file of uids and texts, `path`, with some rows of the file of the same name in a memory."""
    source, is_left = memory.folder / path.name, set(rows.tolist())
    with path.open("w", encoding="utf-8") as file:
        entries = zip(read_field(source, "uid"), read_field(source, "text"), strict=True)
        for row, (uid, text) in enumerate(entries):
            if row in is_left:
                _write_text(file, uid, replaced[row].text if row in replaced else text)
        for put in puts:
            _write_text(file, put.uid, put.text)
        flush(file)


def _write_text(file: IO[str], uid: str, text: str) -> None:
    file.write(json.dumps({"uid": uid, "text": text}, ensure_ascii=False) + "\n")


def _filtered_pairs(memory: Memory, state: FinalState) -> Int[np.ndarray, "pair 2"]:
    """The filtered pairs of the instances and labels that are left, by their new rows."""
    rows, labels = np.full(memory.plan.instances, -1), np.full(memory.plan.labels, -1)
    rows[state.rows], labels[state.label_rows] = np.arange(len(state.rows)), np.arange(len(state.label_rows))
    pairs = np.stack([rows[memory.filtered_pairs[:, 0]], labels[memory.filtered_pairs[:, 1]]], axis=1)
    return np.ascontiguousarray(pairs[(pairs >= 0).all(axis=1)])
