"""Datasets as users hold them: one file a layout, recognised by the files in the folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from trainer.data.dataset import Entries, LabelSets, Split, SplitName, check_unique
from trainer.data.formats import click_log, native, pecos, xmc_repository
from trainer.data.formats.filters import read_filter
from trainer.errors import DatasetError


@runtime_checkable
class Format(Protocol):
    """A layout: what its folder looks like, and how its labels and splits are read."""

    EXPECTED: str

    def recognises(self, folder: Path) -> bool: ...

    def read_labels(self, folder: Path) -> tuple[Path, Entries]: ...

    def read_split(self, folder: Path, name: SplitName, labels: Entries) -> tuple[Path, Entries, LabelSets]: ...


FORMATS: dict[str, Format] = {
    "native": native,
    "xmc": xmc_repository,
    "pecos": pecos,
    "parquet": click_log,
}


@dataclass(frozen=True)
class Dataset:
    """A dataset folder whose labels are read; its splits are read when asked for."""

    folder: Path
    format: Format
    labels: Entries

    def read_split(self, name: SplitName) -> Split:
        """Read and check `train` or `test`.

        Raises:
            DatasetError: If a file is missing or a row breaks the contract; names the file and the row.
        """
        path, entries, label_sets = self.format.read_split(self.folder, name, self.labels)
        if len(entries) == 0:
            raise DatasetError(f"{path}: expected at least one {name} text, found none")
        check_unique(entries.uids, path)
        filtered = read_filter(self.folder / f"filter_labels_{name}.txt", len(entries), len(self.labels))
        return Split(entries, label_sets, filtered)


def open_dataset(folder: Path, format_name: str = "auto") -> Dataset:
    """Recognise a dataset folder's layout and read its labels.

    Args:
        folder: The dataset folder.
        format_name: A key of `FORMATS`; `auto` recognises it from the folder's files.

    Raises:
        DatasetError: If the folder is missing, empty or of no known layout, or its labels break the contract.
    """
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise DatasetError(
            f"{folder}: expected a dataset folder, found {found}; `recollect sample {folder}` writes one"
        )
    if not any(folder.iterdir()):
        raise DatasetError(f"{folder}: expected a dataset, found an empty folder")
    layout = _recognise(folder) if format_name == "auto" else FORMATS[format_name]
    path, labels = layout.read_labels(folder)
    if len(labels) == 0:
        raise DatasetError(f"{path}: expected at least one label, found none")
    check_unique(labels.uids, path)
    if len(labels) > np.iinfo(np.int32).max:
        raise DatasetError(f"{path}: expected at most 2**31 - 1 labels, found {len(labels):,}")
    return Dataset(folder, layout, labels)


def _recognise(folder: Path) -> Format:
    for layout in FORMATS.values():
        if layout.recognises(folder):
            return layout
    known = "; ".join(f"{name}: {layout.EXPECTED}" for name, layout in FORMATS.items())
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:8])
    raise DatasetError(f"{folder}: expected a known layout ({known}), found {found}; choose one with --format")
