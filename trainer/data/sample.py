"""The built-in sample dataset: sentences from the docstrings of Python's standard library.

The labels are the documented names. The labels of a sentence are the names whose docstrings contain the sentence. The
module of a name is not a label of its sentences: the module would get the votes of all its functions, and would rank
above the correct function.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.trainer.data.stdlib.names import read_docstrings
from recollect.trainer.data.stdlib.sentences import sentences
from recollect.trainer.errors import DatasetError

_MOST_LABELS = 8  # a sentence with more labels is boilerplate that describes none of the names
_TEST_SHARE = 0.25  # share of the sentences that are not the first of a docstring

_Record = dict[str, Any]


@dataclass(frozen=True)
class SampleCounts:
    labels: int
    train: int
    test: int


def write_sample(folder: Path, left_out: Collection[str] = ()) -> SampleCounts:
    """Write the sample dataset. The same interpreter always writes the same bytes.

    Args:
        folder: The dataset folder. Missing folders on the path are created.
        left_out: Packages without which the sample is smaller.

    Raises:
        DatasetError: If `folder` is a file or a folder that is not empty; nothing is changed.
    """
    folder = folder.resolve()
    _check_absent_or_empty(folder)
    docstrings = {name: found for name, found in read_docstrings().items() if name.split(".")[0] not in left_out}
    labels, train, test = _build_records(docstrings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Write to a temporary folder and rename it, so that the dataset is either complete or absent.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        incoming = Path(temporary, folder.name)
        incoming.mkdir()
        for name, records in (("labels", labels), ("train", train), ("test", test)):
            _write_lines(incoming / f"{name}.jsonl", records)
        if folder.exists():
            folder.rmdir()
        incoming.rename(folder)
    return SampleCounts(len(labels), len(train), len(test))


def _check_absent_or_empty(folder: Path) -> None:
    if not folder.exists():
        return
    found = next((path.name for path in sorted(folder.iterdir())), None) if folder.is_dir() else "a file"
    if found is not None:
        raise DatasetError(
            f"{folder}: expected no such folder, or an empty one; found {found}{' in it' * folder.is_dir()}: "
            "remove it or name another folder"
        )


def _build_records(docstrings: dict[str, list[str]]) -> tuple[list[_Record], list[_Record], list[_Record]]:
    """Make the records of the three files: labels, train, test."""
    prose = [(name, sentences(docstring)) for name, of_name in docstrings.items() for docstring in of_name]
    documented: dict[str, set[str]] = defaultdict(set)
    for name, of_docstring in prose:
        for sentence in of_docstring:
            documented[sentence].add(name)
    documented = {sentence: names for sentence, names in documented.items() if len(names) <= _MOST_LABELS}
    # The first sentence of a docstring describes the name best. This sentence is never in the test split, so that every
    # label occurs in the train split.
    openings = {next(filter(documented.__contains__, of_docstring), None) for _, of_docstring in prose}

    labels = sorted(set().union(*documented.values()))
    positions = {name: position for position, name in enumerate(labels)}
    train: list[_Record] = []
    test: list[_Record] = []
    numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)
    for sentence, names in documented.items():
        uid = f"{min(names)}#{next(numbers[min(names)])}"
        record = {"uid": uid, "text": sentence, "labels": sorted(positions[name] for name in names)}
        held_out = sentence not in openings and _hash_fraction(sentence) < _TEST_SHARE
        (test if held_out else train).append(record)
    return [{"uid": name, "text": _label_text(name)} for name in labels], train, test


def _label_text(name: str) -> str:
    """The words of a name, then the name: `pathlib.Path.is_dir` becomes "is dir (pathlib.Path.is_dir)"."""
    last = name.rpartition(".")[2]
    return name if last == name else f"{last.replace('_', ' ')} ({name})"


def _hash_fraction(text: str) -> float:
    """The SHA-256 of a text as a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _write_lines(path: Path, records: Iterable[_Record]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
