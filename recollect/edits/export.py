"""`recollect export`: write the memory of a version as a dataset folder in Recollect's own layout.

    labels.jsonl   {"uid", "text", ...}        one line for each label with its fields, in order of position
    train.jsonl    {"uid", "text", "labels"}   one line for each instance; `labels` are uids

`recollect train` reads this folder, and `recollect extend --add` each file. The live entries of the store are included.
The other fields of a live instance follow if they differ from their defaults; a training ignores them. A compacted
version has one line for each key that it kept. Corrections, and pairs that the original dataset excluded, are left out:
the layout has no place for the first, and a bundle does not contain the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from recollect.core.errors import OutputError
from recollect.core.system.files import filled_folder, write_lines
from recollect.core.tables.snapshot import Snapshot
from recollect.edits.log import MemoryLog
from recollect.edits.writer import follow
from recollect.store.store import Store

_BLOCK_ROWS = 4_096


def export_version(store: Store, version: str, out: Path) -> tuple[int, int, int]:
    """Export a published version; return the numbers of instances and labels, and that of the last live entry.

    Raises:
        StoreError: If the store or the version does not exist.
        BundleError, MemoryLogError: If the bundle or the log is damaged, or is not signed by a key in `verify_key`.
        OutputError: If the folder cannot be written.
    """
    bundle = store.open(store.resolve(version))
    memory = follow(MemoryLog.of(store, bundle.manifest), bundle).catch_up()
    return *export(memory, out), memory.sequence


def export(memory: Snapshot, out: Path) -> tuple[int, int]:
    """Write a dataset folder; return the numbers of instances and labels.

    The files appear when they are complete.

    Raises:
        OutputError: If `out` is not absent and not an empty folder, or cannot be written.
    """
    try:
        with filled_folder(out) as incoming:
            labels = write_lines(incoming / "labels.jsonl", _labels(memory))
            instances = write_lines(incoming / "train.jsonl", _instances(memory))
    except OSError as error:
        raise OutputError(f"--out {out}: cannot be written: {error.strerror}") from None
    return instances, labels


def _labels(memory: Snapshot) -> Iterator[dict[str, Any]]:
    labels = memory.labels
    for position in np.flatnonzero(labels.present()).tolist():
        yield {"uid": labels.uids[position], "text": labels.texts[position], **labels.fields_of(position)}


def _instances(memory: Snapshot) -> Iterator[dict[str, Any]]:
    """The instances of the bundle, then the live ones."""
    instances, uids = memory.instances, memory.labels.uids
    numbers = np.flatnonzero(~instances.removed)
    for start in range(0, len(numbers), _BLOCK_ROWS):
        block = numbers[start : start + _BLOCK_ROWS]
        place, label = memory.values.gather(block)
        starts = np.searchsorted(place, np.arange(len(block) + 1))
        for nth, row in enumerate(block.tolist()):
            own = [uids[position] for position in label[starts[nth] : starts[nth + 1]].tolist()]
            yield {
                "uid": instances.uids[row],
                "text": instances.texts[row],
                "labels": own,
                **memory.fields.get(row, {}),
            }
