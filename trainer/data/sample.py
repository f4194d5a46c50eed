"""The built-in sample dataset: sentences from the docstrings of Python's standard library.

The labels are the documented names. The labels of a sentence are the names whose docstrings contain the sentence. The
module of a name is not a label of its sentences: the module would get the votes of all its functions, and would rank
above the correct function. `sample.jsonl.gz` has the sentences of Python 3.11; `sample.LICENSE` is their licence.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.core.system.files import filled_folder, write_lines
from recollect.trainer.errors import DatasetError

# A line for each sentence: its text, its labels and its split, train or test. The first sentence of a docstring is
# always in the train split, so that every label occurs there.
_SENTENCES = Path(__file__).with_name("sample.jsonl.gz")

_Record = dict[str, Any]


@dataclass(frozen=True)
class SampleCounts:
    labels: int
    train: int
    test: int


def write_sample(folder: Path, left_out: Collection[str] = ()) -> SampleCounts:
    """Write the sample dataset.

    Args:
        folder: The dataset folder. Missing folders on the path are created.
        left_out: Packages without which the sample is smaller.

    Raises:
        DatasetError: If `folder` is a file or a folder that is not empty; nothing is changed.
    """
    with filled_folder(folder, DatasetError) as incoming:
        splits = _build_records(left_out)
        for name, records in splits.items():
            write_lines(incoming / f"{name}.jsonl", records)
    return SampleCounts(**{name: len(records) for name, records in splits.items()})


def _build_records(left_out: Collection[str]) -> dict[str, list[_Record]]:
    """Make the records of the three files: labels, train, test."""
    with gzip.open(_SENTENCES, "rt", encoding="utf-8") as file:
        sentences = [json.loads(line) for line in file]
    for sentence in sentences:
        sentence["labels"] = [name for name in sentence["labels"] if name.split(".")[0] not in left_out]
    names = sorted({name for sentence in sentences for name in sentence["labels"]})
    positions = {name: position for position, name in enumerate(names)}
    records: dict[str, list[_Record]] = {
        "labels": [{"uid": name, "text": _label_text(name)} for name in names],
        "train": [],
        "test": [],
    }
    numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)
    for sentence in sentences:
        if labels := sentence["labels"]:
            uid = f"{labels[0]}#{next(numbers[labels[0]])}"
            record = {"uid": uid, "text": sentence["text"], "labels": [positions[name] for name in labels]}
            records[sentence["split"]].append(record)
    return records


def _label_text(name: str) -> str:
    """The words of a name, then the name: `pathlib.Path.is_dir` becomes "is dir (pathlib.Path.is_dir)"."""
    last = name.rpartition(".")[2]
    return name if last == name else f"{last.replace('_', ' ')} ({name})"
