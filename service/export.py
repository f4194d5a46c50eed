"""`recollect export`: write the memory of a version as a dataset folder in Recollect's own layout.

    labels.jsonl   {"uid", "text"}             one line for each label, in order of position
    train.jsonl    {"uid", "text", "labels"}   one line for each instance; `labels` are uids

`recollect train` reads this folder. A compacted version has one line for each key that it kept. Pairs that the original
dataset excluded are not part of a bundle, so the folder has none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from service.bundle.bundle import Bundle
from service.command_settings import ExportSettings
from service.errors import OutputError
from service.store.locations import open_store


class InstanceRow(NamedTuple):
    uid: str
    text: str
    labels: list[str]


class LabelRow(NamedTuple):
    uid: str
    text: str


class MemoryContents(Protocol):
    """The texts of an open version."""

    def instances(self) -> Iterator[InstanceRow]: ...

    def labels(self) -> Iterator[LabelRow]: ...


class BundleContents:
    """The texts of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def instances(self) -> Iterator[InstanceRow]:
        bundle, uids = self._bundle, self._bundle.labels.uids
        for row in range(len(bundle.instance_uids)):
            labels = bundle.value_indices[bundle.value_indptr[row] : bundle.value_indptr[row + 1]]
            yield InstanceRow(
                bundle.instance_uids[row], bundle.instance_texts[row], [uids[label] for label in labels.tolist()]
            )

    def labels(self) -> Iterator[LabelRow]:
        table = self._bundle.labels
        for position in range(len(table)):
            yield LabelRow(table.uids[position], table.texts[position])


def export_version(settings: ExportSettings) -> tuple[int, int]:
    """Export a published version; return the numbers of instances and labels.

    Raises:
        StoreError: If the store or the version does not exist.
        BundleError: If the bundle is damaged, or is not signed by a key in `verify_key`.
        OutputError: If the folder cannot be written.
    """
    store = open_store(settings.store, settings.verify_key, settings.bundle_cache)
    return export(BundleContents(store.open(store.resolve(settings.version))), settings.out)


def export(contents: MemoryContents, out: Path) -> tuple[int, int]:
    """Write a dataset folder; return the numbers of instances and labels.

    The folder appears after its files are complete.

    Raises:
        OutputError: If `out` is not absent and not an empty folder, or cannot be written.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise OutputError(f"--out {out}: expected an absent or empty folder, found a file or files; choose another one")
    incoming = out.with_name(f".{out.name}-incoming")
    try:
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        labels = _write_lines(incoming / "labels.jsonl", contents.labels())
        instances = _write_lines(incoming / "train.jsonl", contents.instances())
        incoming.replace(out)  # replaces an empty folder too
    except OSError as error:
        raise OutputError(f"--out {out}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return instances, labels


def _write_lines(path: Path, rows: Iterable[Any]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for count, row in enumerate(rows, start=1):  # noqa: B007 - the last number is the result
            file.write(json.dumps(row._asdict(), ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return count
