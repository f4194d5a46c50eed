"""The built-in sample dataset: sentences of the standard library's docstrings, labelled by the names they document.

A sentence has the labels of every docstring it stands in, and no others. Were it labelled by its module as well, the module
would collect the votes of all its functions and outrank whichever one was asked for.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import DatasetError
from trainer.stdlib.names import read_docstrings
from trainer.stdlib.sentences import sentences

# A sentence in more docstrings than this says nothing of any of them.
MOST_LABELS = 20
_TEST_SHARE = 0.2


@dataclass(frozen=True)
class SampleCounts:
    labels: int
    train: int
    test: int


def write_sample(folder: Path) -> SampleCounts:
    """Write the sample dataset, the same bytes wherever the same interpreter writes it.

    Args:
        folder: Where to; made if it does not exist, with its parents.

    Raises:
        DatasetError: If `folder` is a file or holds anything; it stays as it is.
    """
    folder = folder.resolve()
    _check_free(folder)
    labels, train, test = _build()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written aside, so that a dataset is there whole or not at all.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
        written = Path(aside, folder.name)
        written.mkdir()
        for name, records in (("labels", labels), ("train", train), ("test", test)):
            _write_lines(written / f"{name}.jsonl", records)
        if folder.exists():
            folder.rmdir()
        written.rename(folder)
    return SampleCounts(len(labels), len(train), len(test))
