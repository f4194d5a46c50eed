"""The built-in sample dataset: sentences of the standard library's docstrings, labelled by the names they document.

A sentence has the labels of every docstring it stands in, and no others. Were it labelled by its module too, a module
would gather the votes of all its functions and outrank the one that was asked for.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.stdlib.names import read_docstrings
from trainer.data.stdlib.sentences import sentences
from trainer.errors import DatasetError

_MOST_LABELS = 8  # a sentence that documents more names is boilerplate and says nothing of any of them
_TEST_SHARE = 0.25  # of the sentences that may be held out

_Record = dict[str, Any]


@dataclass(frozen=True)
class SampleCounts:
    labels: int
    train: int
    test: int


def write_sample(folder: Path) -> SampleCounts:
    """Write the sample dataset; one interpreter always writes the same bytes.

    Args:
        folder: Where it goes. Made if it does not exist, and its parents with it.

    Raises:
        DatasetError: If `folder` is a file or holds anything; it stays as it is.
    """
    folder = folder.resolve()
    _check_free(folder)
    labels, train, test = _records(read_docstrings())
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: a dataset is there whole or not at all.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as aside:
        written = Path(aside, folder.name)
        written.mkdir()
        for name, records in (("labels", labels), ("train", train), ("test", test)):
            _write_lines(written / f"{name}.jsonl", records)
        if folder.exists():
            folder.rmdir()
        written.rename(folder)
    return SampleCounts(len(labels), len(train), len(test))


def _check_free(folder: Path) -> None:
    if not folder.exists():
        return
    found = next((path.name for path in sorted(folder.iterdir())), None) if folder.is_dir() else "a file"
    if found is not None:
        raise DatasetError(
            f"{folder}: expected no such folder, or an empty one; found {found}{' in it' * folder.is_dir()}: "
            "remove it or name another folder"
        )


def _records(docstrings: dict[str, list[str]]) -> tuple[list[_Record], list[_Record], list[_Record]]:
    """The lines of the three files: labels, train, test."""
    prose = [(name, sentences(docstring)) for name, of_name in docstrings.items() for docstring in of_name]
    documented: dict[str, set[str]] = defaultdict(set)
    for name, said in prose:
        for sentence in said:
            documented[sentence].add(name)
    documented = {sentence: names for sentence, names in documented.items() if len(names) <= _MOST_LABELS}
    # What opens a docstring says what the name is for. It is never held out, so the train split has every label.
    openings = {next(filter(documented.__contains__, said), None) for _, said in prose}

    labels = sorted(set().union(*documented.values()))
    positions = {name: position for position, name in enumerate(labels)}
    train: list[_Record] = []
    test: list[_Record] = []
    numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)
    for sentence, names in documented.items():
        uid = f"{min(names)}#{next(numbers[min(names)])}"
        record = {"uid": uid, "text": sentence, "labels": sorted(positions[name] for name in names)}
        held_out = sentence not in openings and _fraction(sentence) < _TEST_SHARE
        (test if held_out else train).append(record)
    return [{"uid": name, "text": _label_text(name)} for name in labels], train, test


def _label_text(name: str) -> str:
    """`is_dir` of `pathlib.Path` reads "is dir (pathlib.Path.is_dir)": encoders find words, not underscores."""
    last = name.rpartition(".")[2]
    return name if last == name else f"{last.replace('_', ' ')} ({name})"


def _fraction(text: str) -> float:
    """A number in [0, 1) that the text alone decides."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _write_lines(path: Path, records: Iterable[_Record]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
