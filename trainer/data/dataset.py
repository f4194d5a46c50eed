"""A dataset folder: its format, its labels, and its splits.

`open_dataset` recognises the format by the files in the folder. `trainer.data.formats` has one reader for each format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from recollect.core.system.console import print_status
from recollect.core.system.files import find_files
from recollect.core.texts import CONTROL_CHARACTERS
from recollect.trainer.data.formats import annif, click_log, label_names, native, pecos, xclib, xmc_repository
from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.filters import FILTERS, find_filter, read_filter, unused_filters
from recollect.trainer.data.parents import describe_parents
from recollect.trainer.data.split import Entries, Split, SplitName, blank_rows, row_numbers
from recollect.trainer.errors import DatasetError
from recollect.trainer.settings import DatasetSettings, EmptyTexts, UnknownLabels


@runtime_checkable
class Format(Protocol):
    """A dataset format: how to recognise a folder and read its labels and splits.

    Both readers also return the path of the file with the texts, for error messages.

    Attributes:
        EXPECTED: The files of the format, for error messages.
        TEXT_FIELDS: The fields that form a text; empty if the format has no fields.
    """

    EXPECTED: str
    TEXT_FIELDS: tuple[str, ...]

    def recognises(self, folder: Path) -> bool: ...

    def read_labels(self, folder: Path, rule: TextRule) -> tuple[Path, Entries]: ...

    def read_split(self, folder: Path, name: SplitName, labels: Entries, rule: TextRule) -> tuple[Path, Split]: ...


FORMATS: dict[str, Format] = {
    "native": native,
    "xmc": xmc_repository,
    "pecos": pecos,
    "xclib": xclib,
    "attentionxml": label_names,
    "parquet": click_log,
    "annif": annif,
}

# The formats whose instances name labels by their uids.
NAMED: tuple[Format, ...] = (native, click_log, annif)


@dataclass(frozen=True)
class Dataset:
    """An open dataset folder. The labels are in memory; `read_split` reads the splits on demand.

    Attributes:
        empty_texts: Whether empty texts are refused, dropped with their row, or kept.
    """

    folder: Path
    format: Format
    labels: Entries
    rule: TextRule
    empty_texts: EmptyTexts
    note: Callable[[str], None]
    _listed: Entries  # all labels of the folder, also dropped ones, because files refer to labels by position
    _kept: Bool[np.ndarray, " listed"]

    @property
    def is_numbered(self) -> bool:
        """Whether the uids of the labels are their row numbers, so that they say nothing about another dataset."""
        return bool(self._listed.uids.equals(row_numbers(len(self._listed))))

    def read_split(self, name: SplitName) -> Split:
        """Read and check `train` or `test`.

        Raises:
            DatasetError: If a file is missing or a row is invalid. The message names the file and the row.
        """
        path, split = self.format.read_split(self.folder, name, self._listed, self.rule)
        self.rule.require_seen(path)
        check_uids(split.entries.uids, path)
        listed = read_filter(find_filter(self.folder, name), len(split), len(self._listed))
        filtered = np.unique(np.concatenate([split.filtered_pairs, listed]), axis=0)
        split = replace(split, filtered_pairs=filtered)
        kept = _kept_rows(split.entries, path, self.empty_texts, self.note)
        if not (kept.all() and self._kept.all()):
            split = split.where(kept, self._kept)
        if len(split) == 0:
            raise DatasetError(f"{path}: expected at least one {name} text, found none")
        return split


def open_named(settings: DatasetSettings, note: Callable[[str], None] = print_status) -> Dataset:
    """Open the dataset that settings name; see `open_dataset`."""
    return open_dataset(
        settings.dataset,
        settings.format,
        text_fields=settings.text_fields,
        empty_texts=settings.empty_texts,
        label_language=settings.label_language,
        unknown_labels=settings.unknown_labels,
        note=note,
    )


def open_dataset(
    folder: Path,
    format_name: str = "auto",
    *,
    text_fields: Sequence[str] = (),
    empty_texts: EmptyTexts = "refuse",
    label_language: str | None = None,
    unknown_labels: UnknownLabels = "refuse",
    note: Callable[[str], None] = print_status,
) -> Dataset:
    """Recognise the format of a dataset folder and read its labels.

    Args:
        format_name: A key of `FORMATS`, or `auto` to recognise the format by the files in the folder.
        text_fields: The fields that form a text, in this order; empty: the fields that the format names.
        empty_texts: Whether empty texts are refused, dropped with their row, or kept.
        label_language: Language of the label texts, in a SKOS vocabulary; None if the vocabulary has only one.
        unknown_labels: Whether names of labels that the dataset does not have are refused or dropped.
        note: Function that reports the number of empty texts and of dropped labels.

    Raises:
        DatasetError: If the folder is missing, empty or in an unknown format, or if a label is invalid.
    """
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise DatasetError(
            f"{folder}: expected a dataset folder, found {found}; `recollect sample {folder}` writes one"
        )
    if not find_files(folder):
        raise DatasetError(f"{folder}: expected a dataset, found an empty folder")
    dataset_format = _recognise(folder) if format_name == "auto" else FORMATS[format_name]
    name = next(name for name, each in FORMATS.items() if each is dataset_format)
    if text_fields and not dataset_format.TEXT_FIELDS:
        raise DatasetError(f"{folder}: --text-fields: expected JSON lines, found the format {name}; omit the flag")
    if label_language is not None and dataset_format is not annif:
        raise DatasetError(
            f"{folder}: --label-language: expected an Annif corpus, found the format {name}; omit the flag"
        )
    if unknown_labels == "drop" and dataset_format not in NAMED:
        known = ", ".join(each for each in FORMATS if FORMATS[each] in NAMED)
        raise DatasetError(
            f"{folder}: --unknown-labels: expected a format with names of labels ({known}), found {name}; omit the flag"
        )
    for path in unused_filters(folder):
        note(f"{path}: this file is not used; filters are {', '.join(FILTERS['train'])}, or the same for test")
    rule = TextRule(tuple(text_fields), empty_texts != "refuse", label_language, unknown_labels, note)
    path, listed = dataset_format.read_labels(folder, rule)
    check_uids(listed.uids, path)
    kept = _kept_rows(listed, path, empty_texts, note)
    labels = listed if kept.all() else listed.where(kept)
    if len(labels) == 0:
        raise DatasetError(f"{path}: expected at least one label, found none")
    for line in describe_parents(labels):
        note(f"{path}: {line}")
    if len(listed) > np.iinfo(np.int32).max:
        raise DatasetError(f"{path}: expected at most 2**31 - 1 labels, found {len(listed):,}")
    return Dataset(folder, dataset_format, labels, rule, empty_texts, note, listed, kept)


def _kept_rows(
    entries: Entries, path: Path, empty_texts: EmptyTexts, note: Callable[[str], None]
) -> Bool[np.ndarray, " row"]:
    """Mark the rows to keep, and report the number of empty texts. With `refuse`, the format has refused them."""
    blank = blank_rows(entries.texts)
    if blank.any():
        done = "dropped" if empty_texts == "drop" else "kept"
        note(f"{path}: {blank.sum():,} of {len(entries):,} texts are empty; they are {done} (--empty-texts)")
    return ~blank if empty_texts == "drop" else np.ones(len(entries), dtype=bool)


def check_uids(uids: pa.LargeStringArray, path: Path) -> None:
    """Check that every uid occurs once, and that no uid contains a control character.

    Raises:
        DatasetError: If a uid is wrong. The message names the uid and its row, or the first two rows with the uid.
    """
    row = pc.index(pc.match_substring_regex(uids, CONTROL_CHARACTERS), True).as_py()
    if row >= 0:
        raise DatasetError(
            f"{path}: expected uids without control characters, found {uids[row].as_py()!r} in row {row + 1}; change it"
        )
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
    found = ", ".join(path.name for path in find_files(folder)[:8])
    raise DatasetError(
        f"{folder}: expected a known format ({known}), found {found}; rename the files, or write labels.jsonl and "
        "train.jsonl as `recollect sample` does"
    )
