"""A dataset: its format, its labels, and its splits.

It is a folder, or a table. `open_named` recognises the format of a folder by its files. `trainer.data.formats` has one
reader for each format.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool
from pydantic.fields import FieldInfo

from recollect.core.bundle.label_fields import from_json
from recollect.core.errors import RecollectError
from recollect.core.settings import as_flag, fill_in
from recollect.core.system.console import print_status
from recollect.core.system.files import find_files
from recollect.core.table_files import TABLE, kind_of, open_table
from recollect.core.table_guesses import example_flags
from recollect.core.texts import CONTROL_CHARACTERS
from recollect.trainer.data.formats import annif, click_log, label_names, native, pecos, table, xclib, xmc_repository
from recollect.trainer.data.formats.fields import TextRule
from recollect.trainer.data.formats.filters import FILTERS, find_filter, read_filter, unused_filters
from recollect.trainer.data.split import Entries, Split, SplitName, blank_rows, row_numbers, text_numbers
from recollect.trainer.errors import DatasetError
from recollect.trainer.settings import DatasetSettings, EmptyTexts


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
NAMED = ("native", "parquet", "annif")


_Settings = TypeVar("_Settings", bound=DatasetSettings)


@dataclass(frozen=True)
class Dataset:
    """An open dataset. The labels are in memory; `read_split` reads the splits on demand.

    Attributes:
        folder: The dataset folder, or the file of a table.
        layout: A key of `FORMATS`, or `table`.
        empty_texts: Whether empty texts are refused, dropped with their row, or kept.
        test_fraction: Share of the texts that is the test split; 0: the test split has a file of its own.
    """

    folder: Path
    layout: str
    format: Format
    labels: Entries
    rule: TextRule
    empty_texts: EmptyTexts
    test_fraction: float
    note: Callable[[str], None]
    _listed: Entries  # all labels of the folder, also dropped ones, because files refer to labels by position
    _kept: Bool[np.ndarray, " listed"]

    @property
    def is_numbered(self) -> bool:
        """Whether the uids of the labels are their row numbers, so that they say nothing about another dataset."""
        return bool(self._listed.uids.equals(row_numbers(len(self._listed))))

    def flags(self, settings: DatasetSettings) -> dict[str, Any]:
        """The layout, and the flags that differ from their defaults, as JSON: `with_remembered` reads them."""
        given = {name: (getattr(settings, name), field.default) for name, field in _flags_of_reading().items()}
        changed = {name: value for name, (value, default) in given.items() if value != default}
        return {"format": self.layout} | {
            name: str(value) if isinstance(value, Path) else value for name, value in changed.items()
        }

    @property
    def is_one_split(self) -> bool:
        """Whether all texts are in each split: a table whose file is used for training, or for a test."""
        return self.layout == TABLE and not self.test_fraction

    def read_split(self, name: SplitName) -> Split:
        """Read and check `train` or `test`.

        Raises:
            DatasetError: If a file is missing or a row is invalid. The message names the file and the row.
        """
        file: SplitName = "train" if self.test_fraction else name
        path, split = self.format.read_split(self.folder, file, self._listed, self.rule)
        self.rule.require_seen(path)
        check_uids(split.entries.uids, path)
        listed = read_filter(find_filter(self.folder, file), len(split), len(self._listed))
        filtered = np.unique(np.concatenate([split.filtered_pairs, listed]), axis=0)
        split = replace(split, filtered_pairs=filtered)
        kept = _kept_rows(split.entries, path, self.empty_texts, self.note)
        if self.test_fraction:
            held_out = self._held_out(split.entries, path)
            if name == "test":
                shares = f"{held_out.sum():,} of {len(split):,} texts, by --test-fraction {self.test_fraction:g}"
                self.note(f"{path}: the test split has {shares}")
            kept &= held_out == (name == "test")
        if not (kept.all() and self._kept.all()):
            split = split.where(kept, self._kept)
        if len(split) == 0:
            raise DatasetError(f"{path}: expected at least one {name} text, found none")
        return split

    def _held_out(self, entries: Entries, path: Path) -> Bool[np.ndarray, " row"]:
        """Mark the texts of the test split. Equal texts are on one side, in every order and after every addition."""
        held_out = text_numbers(entries.strings(), len(entries), "test") < self.test_fraction
        if held_out.all() or not held_out.any():
            raise DatasetError(
                f"{path}: --test-fraction {self.test_fraction:g}: expected texts for training and for the test, found "
                f"{held_out.sum():,} of {len(entries):,} texts for the test; choose another fraction"
            )
        return held_out


def open_dataset(
    folder: Path, format_name: Any = "auto", *, note: Callable[[str], None] = print_status, **flags: Any
) -> Dataset:
    """Open a dataset with some flags of `DatasetSettings`; see `open_named`."""
    return open_named(DatasetSettings.model_construct(dataset=folder, format=format_name, **flags), note)


def open_named(settings: DatasetSettings, note: Callable[[str], None] = print_status) -> Dataset:
    """Recognise the layout of the dataset that settings name, and read its labels.

    Args:
        settings: The dataset and its flags.
        note: Function that reports the number of empty texts and of dropped labels.

    Raises:
        DatasetError: If the dataset is missing, empty or in an unknown layout, if a flag has no effect on this layout,
            or if a label is invalid.
    """
    folder = settings.dataset
    dataset_format: Format
    if is_table(settings):
        if settings.format != "auto":
            raise DatasetError(f"{folder}: --format {settings.format}: expected a folder, found a table; omit the flag")
        name, dataset_format = TABLE, table.TableFormat.of(settings)
    else:
        dataset_format = _find_format(settings)
        name = next(name for name, each in FORMATS.items() if each is dataset_format)
    for message in _without_effect(settings, name):
        raise DatasetError(f"{folder}: {message}; omit the flag")
    if name != TABLE:
        for path in unused_filters(folder):
            note(f"{path}: this file is not used; filters are {', '.join(FILTERS['train'])}, or the same for test")
    empty_texts = settings.empty_texts
    rule = TextRule(
        tuple(settings.text_fields), empty_texts != "refuse", settings.label_language, settings.unknown_labels, note
    )
    path, listed = dataset_format.read_labels(folder, rule)
    check_uids(listed.uids, path)
    kept = _kept_rows(listed, path, empty_texts, note)
    labels = listed if kept.all() else listed.where(kept)
    if len(labels) == 0:
        raise DatasetError(f"{path}: expected at least one label, found none")
    for line in _describe_parents(labels):
        note(f"{path}: {line}")
    if len(listed) > np.iinfo(np.int32).max:
        raise DatasetError(f"{path}: expected at most 2**31 - 1 labels, found {len(listed):,}")
    return Dataset(folder, name, dataset_format, labels, rule, empty_texts, settings.test_fraction, note, listed, kept)


def is_table(settings: DatasetSettings) -> bool:
    """Whether settings name a table, and no folder. A file that is missing is a table by its suffix."""
    path = settings.dataset
    return settings.frame is not None or path.is_file() or (not path.exists() and kind_of(path) is not None)


def with_remembered(
    settings: _Settings,
    remembered: Mapping[str, Any],
    source: str,
    error: type[RecollectError],
    note: Callable[[str], None] = print_status,
) -> _Settings:
    """The settings with the flags of an earlier reading, where the user gives none, if the dataset has its layout.

    Args:
        remembered: What `Dataset.flags` returned then; empty if nothing is known.
        source: Name of the run or the version that remembers them.
        error: Class of the error for a wrong flag, which can be in the bundle of another person.
        note: Function that reports each given flag that differs.

    Raises:
        RecollectError: If a remembered value is no value of its flag.
        DatasetError: If the remembered table of labels is not beside the table.
    """
    layout, folder = str(remembered.get("format")), settings.dataset
    if layout == TABLE:
        is_same = is_table(settings)
    else:
        is_same = layout in FORMATS and settings.format in ("auto", layout) and FORMATS[layout].recognises(folder)
    if not is_same:
        return settings
    found = fill_in(settings, _flags_of_reading(), remembered, source, note, error)
    labels = found.get("labels")
    # Another path could be any file of this machine, because the bundle can be that of another person.
    if labels is not None:
        beside = folder.parent / labels.name
        if os.path.abspath(labels) != os.path.abspath(beside) or not beside.is_file():
            raise DatasetError(
                f"{folder}: --labels: expected the table of labels {labels}, with which {source} was trained, beside "
                "this table, found none; give its path with --labels"
            )
        found["labels"] = beside
    if not can_hold_out(folder, layout):
        found.pop("test_fraction", None)
    return settings.model_copy(update=found if layout == TABLE else {**found, "format": layout})


def _flags_of_reading() -> dict[str, FieldInfo]:
    return {name: field for name, field in DatasetSettings.model_fields.items() if name not in ("dataset", "format")}


def _find_format(settings: DatasetSettings) -> Format:
    folder = settings.dataset
    if not folder.is_dir():
        raise DatasetError(
            f"{folder}: expected a dataset folder or a table, found nothing; `recollect sample {folder}` writes one"
        )
    if not find_files(folder):
        raise DatasetError(f"{folder}: expected a dataset, found an empty folder")
    return _recognise(settings) if settings.format == "auto" else FORMATS[settings.format]


def _without_effect(settings: DatasetSettings, layout: str) -> Iterator[str]:
    """Yield a message for each flag that has no effect on a layout."""
    if settings.text_fields and (layout == TABLE or not FORMATS[layout].TEXT_FIELDS):
        yield f"--text-fields: expected a folder of JSON lines, found the format {layout}"
    if settings.label_language is not None and layout != "annif":
        yield f"--label-language: expected an Annif corpus, found the format {layout}"
    if settings.unknown_labels == "drop" and layout not in NAMED and settings.labels is None:
        yield f"--unknown-labels: expected a format with names of labels ({', '.join(NAMED)}), found {layout}"
    if layout != TABLE:
        for flag in ("text_columns", "label_column", "label_separator", "id_column", "labels"):
            if getattr(settings, flag):
                yield f"{as_flag(flag)}: expected a table, which is a file, found the format {layout}"
    if settings.test_fraction and not can_hold_out(settings.dataset, layout):
        yield f"--test-fraction: expected a table, or a folder with train.jsonl and no test.jsonl, found {layout}"


def can_hold_out(folder: Path, layout: str) -> bool:
    """Whether a dataset may have its test split in the file of its train split."""
    return layout == TABLE or (layout == "native" and not native.has_split(folder, "test"))


def _kept_rows(
    entries: Entries, path: Path, empty_texts: EmptyTexts, note: Callable[[str], None]
) -> Bool[np.ndarray, " row"]:
    """Mark the rows to keep, and report the number of empty texts. With `refuse`, the format has refused them."""
    blank = blank_rows(entries.texts)
    if blank.any():
        done = "dropped" if empty_texts == "drop" else "kept"
        note(f"{path}: {blank.sum():,} of {len(entries):,} texts are empty; they are {done} (--empty-texts)")
    return ~blank if empty_texts == "drop" else np.ones(len(entries), dtype=bool)


def _describe_parents(labels: Entries) -> Iterator[str]:
    """Yield a message if labels name parents that are no labels, and one if labels are below themselves."""
    if labels.fields is None:
        return
    uids = labels.uids.to_pylist()
    parents = {
        uid: from_json(text).get("parents", []) for uid, text in zip(uids, labels.fields.to_pylist(), strict=True)
    }
    unknown = [(uid, parent) for uid, named in parents.items() for parent in named if parent not in parents]
    if unknown:
        uid, parent = unknown[0]
        yield f"{len(unknown):,} parents are no labels (the first: {parent!r} of {uid!r}); a filter ignores them"
    if cycle := _cycle(parents):
        found = " < ".join(map(repr, cycle[:8]))
        yield f"expected parents without a cycle, found {found}; each of these labels is below the others"


def _cycle(parents: dict[str, list[str]]) -> list[str]:
    """The labels of a cycle of parents, from one of them back to itself; empty if there is none."""
    done = set[str]()
    for start in parents:
        path, waiting = dict[str, None](), [iter([start])]
        while waiting:
            uid = next((each for each in waiting[-1] if each not in done), None)
            if uid is None:
                waiting.pop()
                if path:
                    done.add(path.popitem()[0])
            elif uid in path:
                way = [*path]
                return [*way[way.index(uid) :], uid]
            else:
                path[uid] = None
                waiting.append(iter(parents.get(uid, [])))
    return []


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


def _recognise(settings: DatasetSettings) -> Format:
    folder = settings.dataset
    for dataset_format in FORMATS.values():
        if dataset_format.recognises(folder):
            return dataset_format
    files = find_files(folder)
    tables = sorted((path for path in files if kind_of(path) is not None), key=lambda path: "train" not in path.name)
    opened = None
    with contextlib.suppress(DatasetError, IndexError):  # a broken table is no example
        opened = open_table(tables[0], [], DatasetError)
    if opened is not None:
        one = settings.model_copy(update={"dataset": tables[0]})
        example = one.example(example_flags(opened.columns, opened.read), one.command())
        raise DatasetError(
            f"{folder}: expected a known layout of a folder, or the path of a table, found the table {tables[0].name} "
            f"with the columns {', '.join(opened.columns)}; {example}"
        )
    known = "; ".join(f"{name}: {dataset_format.EXPECTED}" for name, dataset_format in FORMATS.items())
    found = ", ".join(path.name for path in files[:8])
    raise DatasetError(
        f"{folder}: expected a known format ({known}), found {found}; rename the files, or write labels.jsonl and "
        "train.jsonl as `recollect sample` does"
    )
