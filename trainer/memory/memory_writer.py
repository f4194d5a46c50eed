"""Writes the memory folder in chunks. An interrupted run continues after the last finished chunk."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from recollect.core.bundle.label_fields import from_json
from recollect.core.system.console import progress_bar
from recollect.core.system.files import flush, save_array, write_json, write_lines
from recollect.trainer.data.split import Entries, Split
from recollect.trainer.distributed import Ranks
from recollect.trainer.errors import MemoryFolderError
from recollect.trainer.memory.key_sources import KeySource
from recollect.trainer.memory.memory import (
    DEFAULTS,
    MemoryPlan,
    header,
    read_header,
    write_dataset_flags,
    write_defaults,
)

# Texts of one rank in one chunk. A chunk is sorted by length for encoding; an interruption loses at most one chunk.
_CHUNK_TEXTS = 4_096


def write_memory(
    folder: Path,
    plan: MemoryPlan,
    labels: Entries,
    instances: Split,
    source: KeySource,
    ranks: Ranks,
    temperature: float = DEFAULTS["temperature"],
    flags: Mapping[str, Any] | None = None,
) -> int:
    """Write the memory of a dataset, or finish the memory of an interrupted run.

    Args:
        folder: Absent, empty, or an unfinished memory with the same plan.
        ranks: The processes that compute keys. Rank 0 writes the files.
        flags: The layout and the flags with which the dataset was read; None if nobody needs them.

    Returns:
        Number of keys that this call computed. Keys of the interrupted run are not counted.
    """
    done = ranks.compute_first(lambda: _write_all_but_keys(folder, plan, labels, instances, flags))
    with (
        _open_keys(folder / "keys.npy", plan, done, ranks) as file,
        progress_bar(plan.keys, "text", "encode", done, shown=ranks.first) as bar,
    ):
        for start, stop in _chunks(plan, done, _CHUNK_TEXTS * ranks.size):
            vectors = source.keys(start, stop, lambda rows: bar.update(rows * ranks.size))
            bar.update(stop - bar.n)  # the sizes of the shares may differ by a row
            if ranks.first:
                file.write(vectors.astype(plan.key_dtype).tobytes())
                flush(file)
                _write_progress(folder, plan, stop)
    if ranks.first:
        write_defaults(folder, plan, DEFAULTS | {"temperature": temperature})
        (folder / "progress.json").unlink()
    computed: int = ranks.broadcast_object(plan.keys - done)  # the other ranks wait until all files are written
    return computed


def _write_all_but_keys(
    folder: Path, plan: MemoryPlan, labels: Entries, instances: Split, flags: Mapping[str, Any] | None
) -> int:
    """Write all files except the keys, unless they exist; return the number of finished keys."""
    folder.mkdir(parents=True, exist_ok=True)
    done = _count_finished_keys(folder, plan)
    if done == 0:
        _write_progress(folder, plan, 0)
        if flags is not None:
            write_dataset_flags(folder, flags)
        write_lines(folder / "labels.jsonl", _label_records(labels))
        write_lines(folder / "instances.jsonl", _records(instances.entries))
        save_array(folder / "value_indptr.npy", instances.labels.indptr)
        save_array(folder / "value_indices.npy", instances.labels.indices)
        save_array(folder / "filtered_pairs.npy", np.ascontiguousarray(instances.filtered_pairs))
    return done


def _count_finished_keys(folder: Path, plan: MemoryPlan) -> int:
    """The number of keys in `progress.json`; 0 if the plan differs or `keys.npy` is shorter."""
    try:
        saved, fields = read_header(folder / "progress.json", "keys_done")
        done = int(fields["keys_done"])
        with (folder / "keys.npy").open("rb") as keys:
            start, size = keys.read(len(_npy_header(plan))), keys.seek(0, os.SEEK_END)
    except (OSError, ValueError, TypeError, MemoryFolderError):
        return 0
    intact = start == _npy_header(plan) and size >= _npy_size(plan, done)
    return done if saved == plan and intact else 0


def _write_progress(folder: Path, plan: MemoryPlan, keys_done: int) -> None:
    write_json(folder / "progress.json", header(plan) | {"keys_done": keys_done})


def _records(entries: Entries) -> Iterator[dict[str, str]]:
    for batch in pa.table({"uid": entries.uids, "text": entries.texts}).to_batches(_CHUNK_TEXTS):
        yield from batch.to_pylist()


def _label_records(labels: Entries) -> Iterator[dict[str, Any]]:
    fields = (text.as_py() for text in labels.fields) if labels.fields is not None else itertools.repeat("")
    for record, own in zip(_records(labels), fields, strict=False):
        yield record | from_json(own)


def _chunks(plan: MemoryPlan, done: int, rows: int) -> Iterator[tuple[int, int]]:
    """First and last row (exclusive) of each unfinished chunk. A chunk holds either instances or labels."""
    for first, last in ((0, plan.instances), (plan.instances, plan.keys)):
        for start in range(max(done, first), last, rows):
            yield start, min(start + rows, last)


def _open_keys(path: Path, plan: MemoryPlan, done: int, ranks: Ranks) -> BinaryIO:
    """Open `keys.npy` to append keys after the finished ones. Ranks other than rank 0 get the null device."""
    if not ranks.first:
        return open(os.devnull, "wb")
    if done == 0:
        path.write_bytes(_npy_header(plan))
    keys = path.open("r+b")
    keys.truncate(_npy_size(plan, done))
    keys.seek(0, os.SEEK_END)
    return keys


def _npy_header(plan: MemoryPlan) -> bytes:
    """The first bytes of `keys.npy`, before the first key."""
    fields = {"descr": np.dtype(plan.key_dtype).str, "fortran_order": False, "shape": (plan.keys, plan.dim)}
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, fields)
    return written.getvalue()


def _npy_size(plan: MemoryPlan, keys: int) -> int:
    """Size of `keys.npy` in bytes with this number of keys."""
    return len(_npy_header(plan)) + keys * plan.dim * np.dtype(plan.key_dtype).itemsize
