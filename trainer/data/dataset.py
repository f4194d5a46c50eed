"""A dataset folder: its format, its labels, and its splits.

`open_dataset` recognises the format by the files in the folder. `trainer.data.formats` has one reader for each format.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.formats import click_log, native, pecos, xmc_repository
from trainer.data.formats.filters import read_filter
from trainer.data.split import Entries, LabelSets, Split, SplitName
from trainer.errors import DatasetError


@runtime_checkable
class Format(Protocol):
    """A dataset format: how to recognise a folder and read its labels and splits.

    Both readers also return the path of the file with the texts, for error messages.
    """

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
    """An open dataset folder. The labels are in memory; `read_split` reads the splits on demand."""

    folder: Path
    format: Format
    labels: Entries

    def read_split(self, name: SplitName) -> Split:
        """Read and check `train` or `test`.

        Raises:
            DatasetError: If a file is missing or a row is invalid. The message names the file and the row.
        """
        path, entries, label_sets = self.format.read_split(self.folder, name, self.labels)
        if len(entries) == 0:
            raise DatasetError(f"{path}: expected at least one {name} text, found none")
        check_unique(entries.uids, path)
        filtered = read_filter(self.folder / f"filter_labels_{name}.txt", len(entries), len(self.labels))
        return Split(entries, label_sets, filtered)


def open_dataset(folder: Path, format_name: str = "auto") -> Dataset:
    """Recognise the format of a dataset folder and read its labels.

    Args:
        folder: The dataset folder.
        format_name: A key of `FORMATS`, or `auto` to recognise the format by the files in the folder.

    Raises:
        DatasetError: If the folder is missing, empty or in an unknown format, or if a label is invalid.
    """
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise DatasetError(
            f"{folder}: expected a dataset folder, found {found}; `recollect sample {folder}` writes one"
        )
    if not any(folder.iterdir()):
        raise DatasetError(f"{folder}: expected a dataset, found an empty folder")
    dataset_format = _recognise(folder) if format_name == "auto" else FORMATS[format_name]
    path, labels = dataset_format.read_labels(folder)
    if len(labels) == 0:
        raise DatasetError(f"{path}: expected at least one label, found none")
    check_unique(labels.uids, path)
    if len(labels) > np.iinfo(np.int32).max:
        raise DatasetError(f"{path}: expected at most 2**31 - 1 labels, found {len(labels):,}")
    return Dataset(folder, dataset_format, labels)


def check_unique(uids: pa.LargeStringArray, path: Path) -> None:
    """Check that every uid occurs once.

    Raises:
        DatasetError: If a uid occurs twice. The message names the uid and its first two rows.
    """
    if pc.count_distinct(uids).as_py() == len(uids):
        return
    codes = uids.dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    repeats = order[1:][codes[order[1:]] == codes[order[:-1]]]
    second = int(repeats.min())
    first = int(np.flatnonzero(codes == codes[second])[0])
    raise DatasetError(
        f"{path}: uid {uids[second].as_py()!r} occurs twice, in rows {first + 1} and {second + 1}; "
        "expected each uid once: remove one of the rows or change its uid"
    )


def _recognise(folder: Path) -> Format:
    for dataset_format in FORMATS.values():
        if dataset_format.recognises(folder):
            return dataset_format
    known = "; ".join(f"{name}: {dataset_format.EXPECTED}" for name, dataset_format in FORMATS.items())
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:8])
    raise DatasetError(f"{folder}: expected a known format ({known}), found {found}; choose one with --format")
